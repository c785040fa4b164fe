"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# The time of one example says nothing on a machine that other work shares.
settings.register_profile("govray", deadline=None)
settings.load_profile("govray")

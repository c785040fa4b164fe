"""Tests of the client: against the real service, over real HTTP."""

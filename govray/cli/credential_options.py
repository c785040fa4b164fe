"""The values of a credential that options take.

They are those of `govray.governance`, written out so that ``govray --help``
need not load it; a test compares them.
"""

from __future__ import annotations

from typing import Literal

LicenseCategory = Literal[
    "public_domain", "permissive", "copyleft_limited", "copyleft", "commercial", "unknown"
]
Sensitivity = Literal["public", "internal", "confidential", "restricted"]
Use = Literal["commercial", "non_commercial", "academic_only", "unspecified"]
Source = Literal[
    "public_dataset", "licensed", "other_private", "crawled", "user", "synthetic", "other"
]
OptOut = Literal["honoured", "none_found", "reserved", "unchecked", "not_applicable"]
PersonalData = Literal["none", "pseudonymised", "present", "unknown"]

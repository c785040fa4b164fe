"""Options that say what a credential states, and the values of a class that they take.

The values are those of `govray.governance`, written out so that ``govray --help``
need not load it; a test compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

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

DescriptionOption = Annotated[
    Path | None,
    typer.Option(
        "--description",
        metavar="FILE",
        help="YAML: the credential's description, such as source, period and opt-outs.",
    ),
]
OptOutsOption = Annotated[
    Path | None,
    typer.Option(
        "--opt-outs",
        metavar="FILE",
        help="A snapshot of robots.txt, tdmrep.json and ai.txt of each host. Records whose URL is "
        "reserved are left out. With --description.",
    ),
]
OptOutAgentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--opt-out-agent",
        metavar="AGENT",
        help="Whose rules count in them. Repeatable. Default: *, everybody's.",
    ),
]
ValidFromOption = Annotated[
    str | None, typer.Option("--valid-from", metavar="TIME", help="Default: now.")
]
ValidUntilOption = Annotated[
    str | None, typer.Option("--valid-until", metavar="TIME", help="Default: 365 days later.")
]

"""The ``environment`` section of the experiment file: what a submitted job runs in.

It is recorded with the experiment, and Ray's dashboard shows it, so it holds no secret. A run that
is started by hand runs in what is here, and does without this section.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from govray.printable import without_keys
from govray.train.experiment.sections import DiskPath, Section

LONGEST_VALUE = 4096

_IMAGE = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NO_PACKAGE = re.compile(r"[./~]|-(?!-(extra-)?index-url\b|-find-links\b|[if] )")
_RESERVED = ("GOVRAY_", "RAY_")
_SECRET_NAMES = frozenset(
    {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"}
    | {"CREDENTIALS", "AUTH"}
)
_SECRET_VALUES = re.compile(
    r"""
    (?:AKIA|ASIA)[0-9A-Z]{16}             # AWS
    | \bgh[oprsu]_[A-Za-z0-9]{20} | \bgithub_pat_\w{20} | \bglpat-[\w-]{20}
    | \bhf_[A-Za-z0-9]{20} | \bsk-[\w-]{20} | \bxox[a-z]-[\w-]{10} | \bAIza[\w-]{35}
    | \bgov[rs]_[\w-]{20}
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.         # a JSON Web Token
    | ://[^/\s@]*:[^/\s@]+@               # a URL with a password
    | \A[0-9a-fA-F]{64}\Z                 # a bare key of 32 bytes
    """,
    re.VERBOSE,
)


def looks_secret(value: str) -> bool:
    """Whether a text is, or holds, what a key, token or password looks like."""
    return value != without_keys(value) or bool(_SECRET_VALUES.search(value))


def _check_image(value: str) -> str:
    if not _IMAGE.fullmatch(value):
        raise ValueError(
            "name the image by digest, NAME@sha256:<64 hex digits>: a tag may be another one later"
        )
    return value


def _check_pip(value: Any) -> Any:
    """Report in one sentence what a union of two types would report in two."""
    if isinstance(value, str) or (
        isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value)
    ):
        return value
    raise ValueError("give a list of requirements, or the path of a requirements file")


def check_requirement(line: str) -> str:
    """Return a line of requirements that names nothing but packages, and no secret.

    Raises:
        ValueError: It names a file, which the cluster does not have, is an option other than where
            packages are, or holds a secret.
    """
    if looks_secret(line):
        raise ValueError("a requirement holds a secret; it is recorded, and everybody sees it")
    if _NO_PACKAGE.match(line) or "file:" in line:
        raise ValueError(
            "a requirement is a package, or --index-url and the like: files of this machine and "
            "other options are not there on the cluster"
        )
    return line


def _check_requirements(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    for line in () if isinstance(value, str) else value:
        if not line.strip() or "\n" in line:
            raise ValueError("a requirement is one line of text")
        check_requirement(line)
    return value


def _check_variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _NAME.fullmatch(name):
            raise ValueError("a variable's name has letters, digits and _, and no digit first")
        if name.upper().startswith(_RESERVED):
            raise ValueError(f"{name} is govray's or Ray's own; leave it out")
        if _SECRET_NAMES & {*name.upper().split("_")}:
            raise ValueError(
                f"{name} names a secret. It would be recorded and shown on Ray's dashboard: put it "
                "where only the cluster reads it, such as a file on the head node"
            )
        if looks_secret(text):
            raise ValueError(f"the value of {name} looks like a key or a token; leave it out")
        if len(text) > LONGEST_VALUE or not text.isprintable():
            raise ValueError(f"the value of {name} is no line of {LONGEST_VALUE} characters")
    return value


class JobEnvironment(Section):
    """What a submitted job gets beside what the cluster has."""

    image: Annotated[str, AfterValidator(_check_image)] | None = Field(
        None,
        description="container image of drivers and workers, by digest; it brings the working "
        "directory too, for Ray starts an image alone",
    )
    pip: (
        Annotated[
            tuple[str, ...] | DiskPath,
            AfterValidator(_check_requirements),
            BeforeValidator(_check_pip),
        ]
        | None
    ) = Field(None, description="requirements, or the path of a requirements file")
    uv_lock: DiskPath | None = Field(
        None,
        description="a lock that `uv export` or `uv pip compile` wrote, which uv installs",
    )
    env_vars: Annotated[dict[str, str], AfterValidator(_check_variables)] = Field(
        default_factory=dict, description="environment variables; none may hold a secret"
    )
    working_dir: DiskPath | None = Field(
        None, description="the folder that the job gets; by default the one it is submitted from"
    )

    @model_validator(mode="after")
    def _installs_once(self) -> JobEnvironment:
        if self.pip is not None and self.uv_lock is not None:
            raise ValueError("Ray installs by pip or by uv: give pip or uv_lock, not both")
        return self

"""The operator's key on the driver: kept in its memory, and out of what Ray hands on.

A Ray cluster that starts here gives every process of it this one's environment. So a variable that
holds a key itself, and not the path of one, leaves the environment before Ray starts; what it held
stays in this process for whoever loads the key by that variable later.

What this does not do: hide the key from other processes of the same account, which may read this
one's memory, its first environment in ``/proc``, and the key's file; or take a variable away from
nodes that were started with it. `refuse_held` is for these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from govray.errors import Refused
from govray.governance.formats.keys import LocalSigner, held_key, load_signer

VARIABLE = "GOVRAY_KEY"
"""Where the commands look for a key if none is named."""

_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"

# The environment is one per process, and so is what was taken out of it.
_taken: dict[str, str] = {}


def variables(reference: str) -> frozenset[str]:
    """The variables that may hold the key: the one that ``reference`` names, and the default."""
    named = reference.removeprefix("env:") if reference.startswith("env:") else VARIABLE
    return frozenset({VARIABLE, named})


def take(reference: str = f"env:{VARIABLE}") -> None:
    """Take the key that ``reference`` names out of the environment, if a variable holds it.

    Raises:
        Refused: The job's runtime environment has it too, from which every worker gets it.
    """
    for name in variables(reference):
        refuse_held([name], _of_the_job(), where="the job's runtime environment")
        if held_key(name, os.environ):
            _taken[name] = os.environ.pop(name)


def load(reference: str, *, password: bytes | Callable[[], bytes] | None = None) -> LocalSigner:
    """As `load_signer`, and the key's variable is no longer in the environment afterwards.

    Raises:
        UsageError: As `load_signer`.
        Refused: As `take`.
    """
    take(reference)
    return load_signer(reference, password=password, environment={**_taken, **os.environ})


def refuse_held(names: Iterable[str], environment: Mapping[str, str], *, where: str) -> None:
    """Refuse an environment in which one of the variables holds a key.

    Raises:
        Refused: It does; the variable is named.
    """
    for name in sorted(names):
        if held_key(name, environment):
            raise Refused(
                f"the variable {name} holds the operator's key, where no worker may see one",
                where=where,
                do="Replace this key; give the new one as a file (mode 0600) on the driver's "
                "machine, or set the variable after Ray was started there",
            )


def _of_the_job() -> dict[str, str]:
    """The variables that `ray job submit` was told to set for the driver and all workers."""
    try:
        config: Any = json.loads(os.environ.get(_JOB, "{}"))
        return dict(config["runtime_env"]["env_vars"])
    except (ValueError, KeyError, TypeError):
        return {}

"""The operator's key on the driver: kept in its memory and out of Ray's environment.

A Ray cluster that starts here passes this environment to all its processes. So a variable that
holds a key itself, and not its path, leaves the environment before Ray starts. The key stays in
this process, and is loaded by the variable's name later.

Other processes of the same account can still read the key: in this one's memory, its first
environment in ``/proc``, or the key's file. Nodes that were started with the variable keep it;
`refuse_held` finds these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from govray.errors import Refused
from govray.governance.formats.keys import Signer, held_key, is_outside, private_pem
from govray.governance.signers.key_reference import open_signer
from govray.governance.signers.pkcs11_reference import PIN_VARIABLE

VARIABLE = "GOVRAY_KEY"
"""Where the commands look for a key if none is named."""

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable by which Ray tells a driver what its job was submitted with, in JSON."""

# A process has one environment, and so one set of values taken out of it.
_taken: dict[str, str] = {}


def variables(reference: str) -> frozenset[str]:
    """The variables that may hold the key: the one that ``reference`` names, and the default."""
    named = reference.removeprefix("env:") if reference.startswith("env:") else VARIABLE
    return frozenset({VARIABLE, named})


def take(reference: str = f"env:{VARIABLE}", *, refuse: bool = False) -> None:
    """Take the key that ``reference`` names out of the environment, if a variable holds it; and a
    module's PIN.

    Args:
        refuse: No key is to be here, so one in the environment is an error.

    Raises:
        Refused: So it is, or the job's runtime environment passes a key to every worker.
    """
    for name in variables(reference):
        if refuse and held_key(name, os.environ):
            raise Refused(
                f"the variable {name} holds the operator's key, and this job does without one",
                where="the job's environment",
                do="Replace this key; give the new one to those alone who prepare and attest",
            )
        refuse_held([name], _of_the_job(), where="the job's runtime environment")
        if held_key(name, os.environ):
            _taken[name] = os.environ.pop(name)
    if PIN_VARIABLE in _of_the_job():
        raise Refused(
            f"the job's runtime environment passes {PIN_VARIABLE} to every worker",
            where="the job's runtime environment",
            do="Set it on the driver's machine, or name a file with pin-source",
        )
    if PIN_VARIABLE in os.environ:
        _taken[PIN_VARIABLE] = os.environ.pop(PIN_VARIABLE)


def require(reference: str) -> None:
    """Raise what `load` would, where ``reference`` names a variable or a file and no key is there.
    Nothing is decrypted, and no module or command is asked."""
    if not is_outside(reference):
        private_pem(reference, {**_taken, **os.environ})


def load(reference: str, *, password: bytes | Callable[[], bytes] | None = None) -> Signer:
    """As `open_signer`, and remove the key's variable from the environment."""
    take(reference)
    return open_signer(reference, password=password, environment={**_taken, **os.environ})


def refuse_held(names: Iterable[str], environment: Mapping[str, str], *, where: str) -> None:
    """Refuse an environment in which one of the variables holds a key."""
    for name in sorted(names):
        if held_key(name, environment):
            raise Refused(
                f"the variable {name} holds the operator's key, and workers must not see it",
                where=where,
                do="Replace this key; give the new one as a file (mode 0600) on the driver's "
                "machine, or set the variable after Ray was started there",
            )


def _of_the_job() -> dict[str, str]:
    """The variables that `ray job submit` sets for the driver and all workers."""
    try:
        config: Any = json.loads(os.environ.get(JOB_CONFIG, "{}"))
        return dict(config["runtime_env"]["env_vars"])
    except (ValueError, KeyError, TypeError):
        return {}

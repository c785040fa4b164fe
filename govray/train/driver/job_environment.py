"""From an experiment's ``environment`` to Ray's ``runtime_env``, with the digests of what it names.

The digests travel in an environment variable of the job, `SETUP`. So each process of it records
what it was set up with, and one that was started by hand records nothing.

What Ray cannot combine is refused here, before a job waits for it in vain. This module needs no
torch and no cluster.

Source: Ray 2.60, `ray.runtime_env.RuntimeEnv`; `ray._private.runtime_env.image_uri`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from govray.errors import Refused, UsageError
from govray.governance.attestation.environment import SETUP, Setup
from govray.governance.formats import canonical_json
from govray.train.experiment.environment import JobEnvironment, check_requirement

_LARGEST = 1 << 20  # bytes of a file of requirements


def runtime_env(environment: JobEnvironment | None, working_dir: str | None) -> dict[str, Any]:
    """What Ray is given for a job.

    Args:
        working_dir: The folder, archive or URI that the job gets; None if its image has it.

    Raises:
        Refused: Ray does not combine what it asks for.
    """
    found: dict[str, Any] = {} if working_dir is None else {"working_dir": working_dir}
    if environment is None:
        return found
    asked = [name for name in ("pip", "uv_lock") if getattr(environment, name) is not None]
    asked += ["working_dir"] if environment.working_dir or working_dir else []
    if environment.image is not None:
        if asked:
            raise Refused(
                f"Ray starts an image with nothing but env_vars, so not with {' and '.join(asked)}",
                where="environment.image",
                do="Build into the image what the job needs, its working directory too",
            )
        if any("'" in value for value in environment.env_vars.values()):
            raise Refused(
                "Ray passes variables to an image between single quotes, so none may hold one",
                where="environment.env_vars",
            )
        found["image_uri"] = environment.image
    setup = Setup(image=environment.image and environment.image.partition("@")[2])
    if environment.pip is not None:
        data = _requirements(environment.pip, "environment.pip")
        found["pip"] = _lines(data, "environment.pip")
        setup = setup.model_copy(update={"pip": canonical_json.sha256(data)})
    if environment.uv_lock is not None:
        data = _requirements(environment.uv_lock, "environment.uv_lock")
        found["uv"] = {"packages": _lines(data, "environment.uv_lock")}
        setup = setup.model_copy(update={"uv_lock": canonical_json.sha256(data)})
    variables = dict(environment.env_vars)
    if setup != Setup():
        variables[SETUP] = canonical_json.encode(setup.to_json()).decode()
    return found | ({"env_vars": variables} if variables else {})


def _requirements(given: str | tuple[str, ...], where: str) -> bytes:
    """The bytes of a file of requirements, or those of a list as such a file."""
    if not isinstance(given, str):
        return "".join(f"{line}\n" for line in given).encode()
    try:
        with Path(given).open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{given} is not readable: {error.strerror}", where=where) from None
    if len(data) > _LARGEST:
        raise UsageError(f"{given} is larger than {_LARGEST >> 20} MiB", where=where)
    return data


def _lines(data: bytes, where: str) -> list[str]:
    """One line for each requirement: comments are left out, and continued lines are joined.
    Ray drops lines that stand there twice, so each must mean something by itself."""
    try:
        text = data.decode("utf-8").replace("\\\r\n", " ").replace("\\\n", " ")
    except UnicodeDecodeError:
        raise UsageError("it is no text", where=where, do="Name a requirements file") from None
    found = []
    for line in text.splitlines():
        kept = " ".join(line.partition(" #")[0].split())
        if not kept or kept.startswith("#"):
            continue
        if kept.startswith("[") or " = " in kept:
            raise UsageError(
                "it is no list of requirements, which is what Ray's uv and pip install",
                where=where,
                do="Write one: `uv export --frozen --no-emit-project -o requirements.lock`",
            )
        try:
            found.append(check_requirement(kept))
        except ValueError as error:
            raise UsageError(str(error), where=where) from None
    if not found:
        raise UsageError("it names no package", where=where, do="Leave it out")
    return found

"""A key behind a command: standard input is what to sign, standard output is the signature.

``command:PROGRAM ARGUMENT…`` is split as a shell splits words, and run without a shell. The public
key stands in ``PROGRAM.pub``. ``command:--public-key FILE PROGRAM ARGUMENT…`` names it instead. A
key service of a cloud or Vault is a program of ten lines: docs/keys-and-trust.md has examples.

Invariants:
    * The command gets at most `TIMEOUT_S` seconds. At the end it is killed with its children.
    * Of its output at most `MAX_SIGNATURE` bytes are read; more is an error.
    * A signature is checked against the public key before anything uses it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, NoReturn, Self

from govray.errors import Malformed, UsageError
from govray.governance.formats.keys import COMMAND, PublicKey, shown_reference
from govray.governance.signers.checked_signature import checked
from govray.printable import without_keys

TIMEOUT_S = 60.0
"""For a signature. Somebody may have to touch a token meanwhile."""
MAX_SIGNATURE = 1024
"""Bytes; the longest that verifies here has 72."""
_MAX_COMPLAINT = 4096
_POLL_S = 0.01
_MAX_PUBLIC_KEY = 64 * 1024
_OPTION = "--public-key"
_FORM = "Write command:PROGRAM ARGUMENT… with PROGRAM.pub beside it, or "
_DO = f"{_FORM}command:{_OPTION} FILE PROGRAM ARGUMENT…"


@dataclass(frozen=True)
class CommandSigner:
    """Signs by running a command."""

    words: tuple[str, ...]
    public_key: PublicKey

    @classmethod
    def open(cls, reference: str) -> Self:
        """The signer of a reference ``command:…``; nothing is run yet."""
        where = shown_reference(reference)
        try:
            words = shlex.split(reference.removeprefix(COMMAND))
        except ValueError:
            raise UsageError("the command's quotes are not closed", where=where, do=_DO) from None
        given = words[:1] == [_OPTION]
        file, program = (words[1:2], words[2:]) if given else (words[:1], words)
        if not file or not program:
            raise UsageError("the reference names no command", where=where, do=_DO)
        path = Path(file[0] if given else f"{file[0]}.pub").expanduser()
        return cls(tuple(program), _public_key(path, where))

    def sign(self, message: bytes) -> bytes:
        """Return the signature over ``message``: 64 bytes (Ed25519) or DER (ECDSA)."""
        return checked(self.public_key, message, self._run(message), where=self._where)

    @property
    def _where(self) -> str:
        return shown_reference(f"{COMMAND}{self.words[0]}")

    def _run(self, message: bytes) -> bytes:
        try:
            process = subprocess.Popen(  # noqa: S603
                self.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its name is no path"
            raise UsageError(f"cannot run the command: {reason}", where=self._where) from None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        signature, complaint = bytearray(), bytearray()
        threads = [
            Thread(target=_write, args=(process.stdin, message), daemon=True),
            Thread(target=_read, args=(process.stdout, signature), daemon=True),
            Thread(target=_drain, args=(process.stderr, complaint), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            ended = _ended(process, lambda: len(signature) > MAX_SIGNATURE)
        finally:
            # Before its exit is collected, so that its number cannot be another process's. What it
            # left behind may hold its output open.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            for thread in threads:
                thread.join(1)
        if not ended:
            raise UsageError(
                f"the command did not end within {TIMEOUT_S:g} s, and was stopped",
                where=self._where,
                do="Run it by hand: it may wait for a password or for the network",
            )
        if len(signature) > MAX_SIGNATURE:
            raise UsageError(
                f"the command wrote more than {MAX_SIGNATURE} bytes",
                where=self._where,
                do="Let it write the signature alone, as bytes and not as text",
            )
        if code != 0:
            raise UsageError(f"the command ended with {code}{_told(complaint)}", where=self._where)
        return bytes(signature)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a signer may not leave this process",
            where=self._where,
            do="Sign on the driver; workers and tasks get no key",
        )


def _public_key(path: Path, where: str) -> PublicKey:
    try:
        with path.open("rb") as file:
            pem = file.read(_MAX_PUBLIC_KEY)
        return PublicKey.from_pem(pem)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "its name is no path"
    except Malformed as error:
        reason = error.what
    raise UsageError(f"the command's public key cannot be read: {reason}", where=where, do=_DO)


def _write(pipe: IO[bytes], message: bytes) -> None:
    with suppress(OSError), pipe:  # a command that does not read fails by its signature
        pipe.write(message)


def _read(pipe: IO[bytes], into: bytearray) -> None:
    with suppress(OSError, ValueError), pipe:
        into += pipe.read(MAX_SIGNATURE + 1)


def _drain(pipe: IO[bytes], into: bytearray) -> None:
    """Read all, so that the command never waits for it, and keep the beginning."""
    with suppress(OSError, ValueError), pipe:
        while chunk := pipe.read1(_MAX_COMPLAINT):  # type: ignore[attr-defined]
            into += chunk[: max(0, _MAX_COMPLAINT - len(into))]


def _ended(process: subprocess.Popen[bytes], enough: Callable[[], bool]) -> bool:
    """Wait until it has ended or written ``enough``; whether it did in time."""
    until = time.monotonic() + TIMEOUT_S
    how = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while not enough() and os.waitid(os.P_PID, process.pid, how) is None:
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _told(complaint: bytearray) -> str:
    """The last line that it complained in, without what could be a key."""
    lines = complaint.decode(errors="replace").strip().splitlines()
    return f": {without_keys(lines[-1])[:200]}" if lines else ""

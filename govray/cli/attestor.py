"""``govray attest --watch``: sign what the register has as finished, and keep the register."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from govray.cli import signing_key
from govray.cli.output import line, note, report
from govray.errors import Refused, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from govray.platform.attestor.attestor import Attestor
    from govray.platform.attestor.settings import AttestorSettings

LOOK_S = 2.0
"""Between two looks for a run that has ended."""
RETRY_S = 15.0


def watch(file: Path, *, once: bool) -> None:
    """Be the attestor that ``file`` describes, until a signal.
    ``once``: attest what waits, and end.

    The keys are read first, and from then on no other process of this account reads this one's
    memory.
    """
    from govray.governance.submission.token_file import SHORTEST, read_token
    from govray.governance.trust.trust_state import TrustState
    from govray.platform.attestor.attestor import Attestor, check_keys
    from govray.platform.attestor.door import register_door
    from govray.platform.attestor.parser import confined, refuse_readable
    from govray.platform.attestor.register import Register
    from govray.platform.attestor.settings import read_settings
    from govray.train.run_folder.clock import instant

    settings = read_settings(file)
    for secret in settings.secrets:
        refuse_readable(secret, (settings.prepared,))
    signers = tuple(signing_key.load(each, settings.key_password_file) for each in settings.keys)
    token = read_token(settings.token_file, "the register's token", shortest=SHORTEST)
    trust = TrustState.load(settings.trust_root.read_bytes(), at=instant())
    check_keys(trust, signers)
    register = Register(settings.register_url)
    attestor = Attestor(
        settings=settings,
        register=register,
        signers=signers,
        parser=confined(settings.confinement),
        clock=instant,
    )
    if once:
        _pass(attestor, Event())
        return
    door = register_door(register, token, trust.digest, instant)
    with _open(door, settings) as (address, stop):
        report({"address": address, "keyids": [each.public_key.keyid for each in signers]})
        line(f"govray attests what ends below {settings.storage}, register {address}")
        note("Stop it with Ctrl-C.")
        wait = LOOK_S
        while not stop.wait(wait):
            wait = LOOK_S if _pass(attestor, stop) else RETRY_S


def _pass(attestor: Attestor, stop: Event) -> bool:
    """Attest what waits, until ``stop``. Whether that went well; a failure is told."""
    from sqlalchemy.exc import DBAPIError

    from govray.cli.error_report import describe
    from govray.errors import GovrayError

    try:
        for done in attestor.once(stop.is_set):
            found = f"attested as {done.digest}" if done.digest else f"NOT attested: {done.why}"
            line(f"{done.run}  {found}")
    except (GovrayError, DBAPIError, OSError) as error:
        note(f"A pass failed: {describe(error).what}. Trying again in {RETRY_S:g} s.")
        return False
    return True


def _certificate(settings: AttestorSettings) -> tuple[Path, Path] | None:
    """The register's certificate and its key, which belong together."""
    import ssl

    from govray.storage.private_file import OpenToOthers, open_private

    certificate, key = settings.certificate, settings.certificate_key
    if certificate is None or key is None:
        return None
    try:
        open_private(key).close()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OpenToOthers as error:
        what = "others than its owner may read the certificate's key"
        raise Refused(what, where=str(key), do=f"Run {error.remedy}") from None
    except OSError as error:
        raise UsageError(
            f"the register's certificate cannot be used ({error.strerror})",
            where=str(certificate),
            do="Name a certificate and its key, both as PEM, in attestor.yaml",
        ) from None
    return certificate, key


@contextmanager
def _open(door: Starlette, settings: AttestorSettings) -> Iterator[tuple[str, Event]]:
    """The register's door, open in a thread until the context ends; and what a signal sets.
    A second signal ends the process at once, which is safe."""
    import signal
    from threading import Thread

    import uvicorn

    from govray.cli.serve import listen, server_config

    stop = Event()

    def stopping(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    tls = _certificate(settings)
    with listen(settings.host, settings.port, "port") as listening:
        server = uvicorn.Server(server_config(door, [], tls=tls))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, name="register")
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, stopping)
        thread.start()
        try:
            scheme = "https" if tls else "http"
            yield f"{scheme}://{settings.host}:{listening.getsockname()[1]}", stop
        finally:
            server.should_exit = True
            thread.join()

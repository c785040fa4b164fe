"""``govray witness``: ask witnesses to cosign a ledger's head, or be one."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Annotated

import typer

from govray.cli import signing_key, trust, user_files
from govray.cli.output import (
    DEFAULT_KEY,
    AllowUncovered,
    Key,
    PasswordFile,
    RevocationLists,
    TrustRoot,
    field,
    line,
    note,
    report,
)
from govray.errors import Refused, UsageError

app = typer.Typer(help="Ask witnesses to cosign a run's ledger, or be a witness.")

ORIGINS = "govray.dev/ledger/*"


@app.command()
def ask(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    witness: Annotated[
        list[str],
        typer.Option(
            "--witness",
            metavar="NAME=URL",
            help="A witness by its name in the trust root, and where it answers. Repeatable.",
        ),
    ],
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    allow_uncovered: AllowUncovered = None,
) -> None:
    """Verify MODEL, and collect cosignatures of witnesses over the head of its run's ledger.

    They are stored beside the ledger, where verify finds them. A witness sees the ledger's name,
    size and root, and hashes. It refuses a head that does not extend what it saw before.
    """
    from datetime import UTC, datetime

    from govray.evidence.notaries.asking import ask_witness, with_cosignature
    from govray.governance.attestation import model_folder
    from govray.governance.formats.document import format_time
    from govray.governance.formats.signed_note import TreeHead
    from govray.governance.notary.cosignature import check_cosignatures, missing_witnesses

    found = trust.ModelTrust(
        trust_root=trust_root, revocations=revocations, allow_uncovered=allow_uncovered
    ).verify(model)
    policy = found.trust_root.root.witness_policy
    if policy is None:
        raise UsageError(
            "the trust root names no witnesses, so no cosignature would count",
            where="--trust-root",
            do="Let its owner add a witness_policy",
        )
    named = {each.name: each for each in policy.witnesses}
    asked = dict(_named(each, named) for each in witness)
    folder = Path(str(found.path))
    checkpoint = user_files.read(folder / model_folder.CHECKPOINT)
    path = folder / model_folder.WITNESSED
    cosigned = user_files.read(path) if path.exists() else checkpoint
    given = {each.witness: each for each in found.cosignatures}
    refused: list[Refused] = []
    head = TreeHead(found.ledger.origin, found.ledger.size, found.ledger.root)
    started = found.attestation.run.started
    for name, url in asked.items():
        try:
            signature, cosignature = ask_witness(
                url, named[name], found.ledger, checkpoint, at=datetime.now(UTC)
            )
            added = with_cosignature(cosigned, named[name], signature)
            # What the verifier would refuse is not stored.
            check_cosignatures(found.trust_root, added, head, started=started, at=datetime.now(UTC))
        except Refused as error:
            refused.append(error)
            continue
        cosigned, given[name] = added, cosignature
        user_files.write(path, cosigned)
    if refused:
        raise refused[0]
    missing = missing_witnesses(found.trust_root, list(given.values()))
    report(
        {
            "model": str(folder),
            "ledger": found.ledger.origin,
            "size": str(found.ledger.size),
            "cosignatures": [
                {"witness": each.witness, "time": format_time(each.time)} for each in given.values()
            ],
            "threshold": policy.threshold,
            "witnessed": missing == 0,
            "file": str(path),
        }
    )
    line(f"Cosigned {found.ledger.origin}, {found.ledger.size} leaves", style="bold")
    for each in given.values():
        field("witness", str(each))
    field("policy", f"{len(given)} of {policy.threshold} that the trust root asks for")


@app.command()
def serve(
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Its name, such as witness.example/w1."),
    ],
    state: Annotated[
        Path,
        typer.Option("--state", metavar="DIR", help="A folder of its own for what it has seen."),
    ],
    log_key: Annotated[
        list[Path],
        typer.Option(
            "--log-key",
            metavar="FILE",
            help="The public key of an operator whose ledgers it cosigns. Repeatable.",
        ),
    ],
    key: Key = DEFAULT_KEY,
    password_file: PasswordFile = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", metavar="GLOB", help=f"Ledgers it knows. Repeatable. Default: {ORIGINS}."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Where to listen.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="The port to listen on; 0: any that is free.",
        ),
    ] = 8420,
) -> None:
    """Be a witness (C2SP tlog-witness): cosign heads that extend what was seen, until SIGTERM.

    Put a proxy with TLS in front of it. Its key is Ed25519 and for nothing else.
    """
    import logging
    import signal
    from datetime import UTC, datetime

    import uvicorn

    from govray.cli.serve import listen, server_config
    from govray.evidence.notaries.witness_state import WitnessState, witness_app
    from govray.governance.formats.keys import PublicKey
    from govray.governance.formats.signed_note import signature_line

    signature_line(name, b"")  # refuses a name that no note can hold
    signer = signing_key.load(key, password_file)
    keys = [PublicKey.from_pem(user_files.read(each)) for each in log_key]
    if signer.public_key in keys:
        raise UsageError(
            "the witness's key is an operator's too",
            where="--log-key",
            do="Make a key for the witness alone: govray keys new witness.pem",
        )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    with (
        WitnessState(
            state,
            name,
            signer,
            keys=keys,
            origins=origin or [ORIGINS],
            clock=lambda: datetime.now(UTC),
        ) as witness,
        listen(host, port, "--port") as listening,
    ):
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/"
        report({"address": address, "name": name, "keyid": signer.public_key.keyid})
        line(f"witness {name} answers at {address}  (stop: Ctrl-C)")
        note("Never restore its folder from a copy: a witness that forgets vouches for nothing.")
        server = uvicorn.Server(server_config(witness_app(witness), []))
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[listening])


def _named(text: str, known: Container[str]) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals or name not in known:
        raise UsageError(
            "no NAME=URL of a witness that the trust root names",
            where=f"--witness {text[:80]!r}",
            do="Write such as witness.example/w1=https://witness.example",
        )
    return name, url

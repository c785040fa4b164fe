"""What a service has that was signed: attestations of models, depth policies, and its corpora.

``attestation verify`` is of an envelope alone, by the service's trust roots. `govray verify` checks
a model's folder by a root of one's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli.listing_verbs import add_listings
from govray.cli.model import Labels, Notes, pairs
from govray.cli.output import field, line, report
from govray.cli.server_option import service
from govray.cli.told import save, tell_rows
from govray.cli.user_files import read, sha256
from govray.errors import CouldNotCheck, VerificationFailed

attestations = typer.Typer(
    help="List, find, get, check and register attestations that a service has."
)
policies = typer.Typer(help="List and get the depth policies that a service has.")
corpora = typer.Typer(help="List and show the corpora that a service knows.")

Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="The digest, as ls prints it.")]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")]


add_listings(attestations, "attestation")
add_listings(policies, "policy")
add_listings(corpora, "corpus")


@attestations.command()
def find(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of a model, here.")],
) -> None:
    """Find the attestations about a file, by its SHA-256. The file is not sent."""
    digest = sha256(file)
    found = service().attestations.by_subject(sha256=digest)["items"]
    none = f"Nothing that you may read is about {digest}"
    tell_rows(found, "attestation, file: name, run", none)


@attestations.command()
def verify(
    which: Annotated[
        str, typer.Argument(metavar="DIGEST|FILE", help="One of the service, or an envelope here.")
    ],
) -> None:
    """Check an attestation's envelope by the service's trust roots.

    Exit code 1: a step failed. 3: the service has no trust root that it could check by.
    """
    known, here = service().attestations, Path(which)
    data = read(here) if here.is_file() else known.get(which)
    done = known.verify(data=data)
    if done["outcome"] == "failed":
        failed = next(each for each in done["steps"] if each["status"] == "failed")
        raise VerificationFailed(f"step {failed['number']}, {failed['name']}: {failed['why']}")
    if done["outcome"] == "notChecked":
        raise CouldNotCheck(done["meaning"], where=which)
    report(done)
    line(f"{done['attestation']}: {done['meaning']}")
    for name in ("run", "signer", "trustRoot", "at"):
        field(name, done[name])
    for each in done["steps"]:
        field(each["status"], f"{each['number']}. {each['name']}")


@attestations.command()
def get(digest: Digest, out: Out) -> None:
    """Write an attestation's envelope to FILE, byte for byte as it was signed."""
    save(service().attestations.get(digest), out, digest=digest)


@attestations.command()
def register(
    attestation: Annotated[
        str,
        typer.Argument(metavar="DIGEST", help="The digest of an attestation that the service has."),
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The model's name.")],
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="The version: MAJOR.MINOR.PATCH.")
    ],
    label: Labels = None,
    notes: Notes = "",
) -> None:
    """Make a version of an attestation: the service verified its model when it indexed it."""
    done = service().models.register(
        name,
        version=version,
        attestation=attestation,
        labels=pairs(label or [], "--label"),
        notes=notes,
    )
    report(done.model_dump(by_alias=True))
    line(f"Registered {name} {done.version}", style="bold")
    field("attests", done.attestation)


@policies.command("get")
def get_policy(digest: Digest, out: Out) -> None:
    """Write a policy's envelope to FILE, byte for byte as it was signed."""
    save(service().policies.get(digest), out, digest=digest)


@corpora.command("show")
def show_corpus(
    name: Annotated[str, typer.Argument(metavar="CORPUS", help="Its name, from ls.")],
) -> None:
    """Show a corpus: its credentials, and the models that used it. --json has the layers."""
    found = service().corpora.get(name)
    report(found)
    line(f"{found['name']}  of {found['supplier']}, {found['sensitivity']}")
    for each in found["credentials"]:
        until = f"{each['validFrom']} to {each['validUntil']}"
        field("signed", f"{each['digest']}  {each['license']}, {each['records']} records, {until}")
    for each in found["uses"]:
        field("used by", f"{each['name']}  {each['attestation']}, {each['tokens']} tokens")

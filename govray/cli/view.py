"""``govray view``: part of an attestation for one audience, and its verifying."""

from __future__ import annotations

import os
import secrets
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import signing_key, user_files
from govray.cli.option_group import option_groups
from govray.cli.output import DEFAULT_KEY, Key, PasswordFile, field, line, report
from govray.cli.trust import ModelTrust, Trusted
from govray.errors import Refused, UsageError
from govray.printable import json_text

if TYPE_CHECKING:
    from govray.evidence.views.attestation_facts import Fact
    from govray.evidence.views.view import VerifiedView

app = typer.Typer(help="Show an audience a part of an attestation, and verify such a part.")

Secret = Annotated[
    Path,
    typer.Option(
        "--secret", metavar="FILE", help="The secret that govray view disclose was given."
    ),
]
MOST_OF_A_FIELD = 12
"""Lines of one field; a model of many corpora has hundreds."""

ViewFile = Annotated[Path, typer.Argument(metavar="VIEW", help="A view, as JSON.")]


@app.command()
@option_groups
def make(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    audience: Annotated[
        Path,
        typer.Option("--audience", metavar="FILE", help="YAML: what this audience is shown."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The view, a new file.")],
    secret: Secret,
    trusted: ModelTrust,
    disclosure: Annotated[
        Path, typer.Option("--disclosure", metavar="FILE", help="What govray view disclose signed.")
    ] = Path("disclosure.dsse.json"),
) -> None:
    """Verify MODEL, and write what one audience is shown of its attestation.

    Nothing is written if a name that is withheld stands in what would be shown.
    """
    from govray.evidence.views.attestation_facts import names_of
    from govray.evidence.views.audience import Audience
    from govray.evidence.views.disclosure import disclosed_facts, read_secret, weights_of
    from govray.evidence.views.view import View, delegations_to, verify_disclosure, verify_view
    from govray.governance.attestation import model_folder
    from govray.governance.attestation.model_folder import Bundle

    asked = Audience.read(user_files.read(audience), name=str(audience))
    anchor, time = trusted.anchor(), trusted.time()
    found = trusted.verify(model)
    user_files.require_outside(out, found.path)
    envelope = user_files.read(disclosure)
    signed = verify_disclosure(found.trust_root, envelope, at=time, where=str(disclosure))
    if signed.subjects != (weights_of(found),):
        raise Refused(
            "it is about other weights than this model's",
            where=str(disclosure),
            do="Give the disclosure of this model.",
        )
    facts = disclosed_facts(found, read_secret(secret))
    facts.require(signed.document, where=str(disclosure))
    names = names_of(found.attestation)
    chosen = asked.choose(facts, names, where=str(audience))
    folder = Bundle(found.path)
    delegations: tuple[bytes, ...] = ()
    if model_folder.DELEGATIONS in folder.names():
        delegations = folder.lines(model_folder.DELEGATIONS, limit=model_folder.MAX_ENVELOPE)
    view = View.make(facts, chosen, envelope, delegations_to(signed, found.trust_root, delegations))
    # As its audience will: nothing that would be refused is handed out.
    shown = verify_view(view, anchor, at=time, where=str(out))
    user_files.write(out, view.encode(), replace=False)
    report(
        {
            "view": str(out),
            "shown": shown.leaves,
            "withheld": shown.withheld,
            "names": sorted(shown.names.values()),
            "withheldNames": len(names) - len(shown.names),
        }
    )
    line(f"{out}: {shown.leaves} of {signed.document.leaves} leaves", style="bold")
    field("names", f"{len(shown.names)} shown, {len(names) - len(shown.names)} withheld")
    field("verify", f"govray view verify {quote(str(out))} --trust-root ROOT")


@app.command()
@option_groups
def verify(path: ViewFile, trusted: Trusted) -> None:
    """Verify a view by itself, and print what it shows.

    It shows what its signer stated. What is not in it was withheld, or was never there.
    """
    found = _verified(path, trusted)
    report(_json(path, found))
    line(f"VERIFIED view   {found.leaves} leaves, signer {found.disclosure.authority.name}", "bold")
    for subject in found.disclosure.subjects:
        field("model", f"{subject.name}  {subject.sha256}")
    field("trust", f"root {found.trust.root.name} v{found.trust.root.version}")
    for keyid in sorted(found.disclosure.keyids):
        field("key", keyid)
    field("withheld", f"{found.withheld} of {found.disclosure.document.leaves}, padding included")
    for name, of_field in groupby(found.facts, key=lambda each: each.field):
        facts = [*of_field]
        for fact in facts[:MOST_OF_A_FIELD]:
            about = "".join(f" of {each}" for each in (fact.corpus, fact.group) if each)
            line(f"  {name}{about}: {_text(fact.value)}")
        if len(facts) > MOST_OF_A_FIELD:
            line(f"  {name}: {len(facts) - MOST_OF_A_FIELD} more; --json has all")


@app.command()
@option_groups
def check(
    path: ViewFile,
    model: Annotated[Path, typer.Option("--model", metavar="MODEL", help="The model folder.")],
    secret: Secret,
    trusted: ModelTrust,
) -> None:
    """Verify a view, and that its signer stated what MODEL's attestation states.

    That takes the whole model and the secret: for an auditor, who is shown everything.
    """
    from govray.evidence.views.disclosure import disclosed_facts, read_secret, weights_of

    found = _verified(path, trusted)
    whole = trusted.verify(model)
    if found.disclosure.subjects != (weights_of(whole),):
        raise Refused("it is about other weights than this model's", where=str(path))
    facts = disclosed_facts(whole, read_secret(secret))
    facts.require(found.disclosure.document, where=str(path))
    report(_json(path, found) | {"attestation": whole.digest})
    line(f"VERIFIED view   all {len(facts.leaves)} leaves follow from {whole.path}", "bold")
    field("attests", whole.digest)
    field("signer", found.disclosure.authority.name)


def _verified(path: Path, trusted: Trusted) -> VerifiedView:
    from govray.evidence.views.view import View, verify_view

    anchor = trusted.anchor()
    view = View.read(user_files.read(path), where=str(path))
    return verify_view(view, anchor, at=trusted.time(), where=str(path))


def _json(path: Path, found: VerifiedView) -> dict[str, Any]:
    return {
        "view": str(path),
        "signer": found.disclosure.authority.name,
        "keyids": sorted(found.disclosure.keyids),
        "disclosure": found.disclosure.digest,
        "subjects": {each.name: each.sha256 for each in found.disclosure.subjects},
        "trustRoot": found.trust.digest,
        "shown": found.leaves,
        "withheld": found.withheld,
        "names": sorted(found.names.values()),
        "facts": [_fact(each) for each in found.facts],
    }


def _fact(fact: Fact) -> dict[str, Any]:
    about = {"corpus": fact.corpus, "group": fact.group}
    return {
        "field": fact.field,
        **{name: each for name, each in about.items() if each is not None},
        "value": fact.value,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


@option_groups
def disclose(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    secret: Annotated[
        Path,
        typer.Option(
            "--secret",
            metavar="FILE",
            help="The secret behind all salts; made if it is not there. Outside of MODEL.",
        ),
    ],
    trusted: ModelTrust,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The signed disclosure, a new file.")
    ] = Path("disclosure.dsse.json"),
    key: Key = DEFAULT_KEY,
    password_file: PasswordFile = None,
) -> None:
    """Verify MODEL, and sign salted commitments to the parts of its attestation.

    Views of it are made from that with govray view make, without the key. The secret
    opens every part. The same model and secret give the same commitments.
    """
    from govray.evidence.views.disclosure import read_secret, sign_disclosure
    from govray.evidence.views.view import verify_disclosure
    from govray.governance.verify.cosign import missing_signatures

    found = trusted.verify(model)
    for path in (secret, out):
        user_files.require_outside(path, found.path)
    if os.path.lexists(out):
        raise UsageError("already exists", where=str(out), do="Choose another name.")
    made = not os.path.lexists(secret)
    used = secrets.token_bytes(32) if made else read_secret(secret)
    signer = signing_key.load(key, password_file)
    envelope = sign_disclosure(found, used, signer)
    # As others will, so that nothing is handed out that they refuse.
    one_key = found.trust_root.each_key_counts("operator")
    signed = verify_disclosure(one_key, envelope, at=trusted.time(), where=str(out))
    missing = missing_signatures(found.trust_root, envelope)
    if made:
        user_files.write(secret, used, mode=0o600, replace=False)
    user_files.write(out, envelope, replace=False)
    report(
        {
            "disclosure": str(out),
            "digest": signed.digest,
            "attestation": found.digest,
            "leaves": signed.document.leaves,
            "keyid": signer.public_key.keyid,
            "missingSignatures": missing,
            "secret": str(secret),
            "secretMade": made,
        }
    )
    line(f"Disclosed {found.path}: {out}", style="bold")
    field("leaves", f"{signed.document.leaves}, padding included")
    field("signer", f"{signed.authority.name}, key {signer.public_key.keyid}")
    field("secret", f"{secret}{', made now: keep it' if made else ''}")
    field("next", f"govray view make {quote(str(model))} --audience FILE --out VIEW …")
    if missing:
        field("MISSING", f"{missing} further signatures: govray sign {quote(str(out))} --key KEY")

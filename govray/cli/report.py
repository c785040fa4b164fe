"""``govray report``: drafts for regulators from a verified model and what its provider signed.

Everything is verified first: the model folder, then the provider's statement under the same trust
root.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from govray.cli import user_files
from govray.cli.option_group import option_groups
from govray.cli.output import Force, field, line
from govray.cli.output import report as print_report
from govray.cli.trust import ModelTrust
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.evidence.reports.annex_xi import CountedFlops
    from govray.evidence.reports.draft import Draft
    from govray.evidence.reports.provider_statement import ProviderStatement
    from govray.governance.trust.trust_state import Verified
    from govray.governance.verify.verifier import VerifiedModel

app = typer.Typer(help="Draft the EU's training summary and technical documentation of a model.")

Form = Literal["html", "docx", "json"]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")]
Provider = Annotated[
    Path | None,
    typer.Option("--provider", metavar="FILE", help="The provider's signed statement."),
]
FormOption = Annotated[
    Form | None,
    typer.Option("--format", help="The format. Default: by what FILE ends with, or html."),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")]


@app.command("eu-summary")
@option_groups
def eu_summary(
    model: Model,
    out: Out,
    trusted: ModelTrust,
    provider: Provider = None,
    form: FormOption = None,
    force: Force = False,
) -> None:
    """Draft the public summary of training content, by the Commission's template.

    Fields come from the model's records, or from --provider. All others are marked missing.
    """
    from govray.evidence.reports.eu_summary import eu_summary as draft_of

    verified, statement = _verified(model, provider, trusted)
    _write(draft_of(verified, statement), out, form, force)


@app.command("annex-xi")
@option_groups
def annex_xi(
    model: Model,
    out: Out,
    trusted: ModelTrust,
    provider: Provider = None,
    form: FormOption = None,
    count_flops: Annotated[
        bool,
        typer.Option(
            "--count-flops",
            help="Count the operations of a row, on tensors without memory. Of govray's own "
            "architectures alone.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Draft the technical documentation of Annex XI, section 1, of the EU's AI Act."""
    from govray.evidence.reports.annex_xi import annex_xi as draft_of
    from govray.evidence.reports.annex_xi import read_files

    verified, statement = _verified(model, provider, trusted)
    files = read_files(verified)
    flops = _count(files.config) if count_flops else None
    _write(draft_of(verified, files, statement, flops), out, form, force)


@app.command("provider-template")
@option_groups
def provider_template(
    model: Model,
    out: Out,
    trusted: ModelTrust,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The model's name. Default: its run's."),
    ] = None,
    force: Force = False,
) -> None:
    """Write the file in which a provider states what no record of MODEL does. Then sign it."""
    from govray.evidence.reports.annex_xi import annex_xi, read_files
    from govray.evidence.reports.eu_summary import eu_summary
    from govray.evidence.reports.provider_statement import provider_template as template_of

    verified, _ = _verified(model, None, trusted)
    drafts = [eu_summary(verified), annex_xi(verified, read_files(verified))]
    text = template_of(
        name or verified.attestation.run.id,
        verified.digest,
        drafts,
        at=trusted.time(),
    )
    user_files.write(out, text.encode(), replace=force)
    asked = sum(each.startswith("#") and each[1:2].isalpha() for each in text.splitlines())
    print_report({"file": str(out), "attestation": verified.digest, "asks": asked})
    line(f"Wrote {out}: {asked} questions")
    field("attests", verified.digest)
    line()
    line(f"Next  fill it in, then: govray sign {quote(str(out))} --key KEY")


def _verified(
    path: Path, provider: Path | None, trusted: ModelTrust
) -> tuple[VerifiedModel, Verified[ProviderStatement] | None]:
    from govray.evidence.reports.provider_statement import verify_statement

    model = trusted.verify(path)
    if provider is None:
        return model, None
    statement = verify_statement(
        model.trust_root,
        user_files.read(provider),
        attestation=model.digest,
        at=trusted.time(),
    )
    return model, statement


def _form(out: Path, given: Form | None) -> Form:
    ends: dict[str, Form] = {".html": "html", ".htm": "html", ".docx": "docx", ".json": "json"}
    found = given or ends.get(out.suffix.lower())
    if found is None:
        raise UsageError(
            "its name does not say which form it has",
            where=str(out),
            do="End it with .html, .docx or .json, or give --format.",
        )
    return found


def _write(draft: Draft, out: Path, given: Form | None, force: bool) -> None:
    form = _form(out, given)
    if form == "html":
        from govray.evidence.reports.web_page import web_page

        data = web_page(draft)
    elif form == "docx":
        from govray.evidence.reports.word_file import word_file

        data = word_file(draft)
    else:
        data = draft.json_file()
    user_files.write(out, data, replace=force)
    missing = [each for each in draft.fields if each.state == "missing"]
    told: dict[str, Any] = {
        "file": str(out),
        "format": form,
        "counts": draft.to_json()["counts"],
        "missing": [each.key for each in missing],
        "unused": list(draft.unused),
    }
    print_report(told)
    line(f"Draft: {out}", style="bold")
    field("filled", f"{draft.count('filled')} from records")
    field("answered", f"{draft.count('asked')} by the provider")
    field("missing", len(missing))
    for each in missing:
        field("", f"{each.key}: {each.label}")
    if draft.unused:
        field("unused", f"{', '.join(draft.unused)}: records fill these fields")


def _count(config: Any) -> CountedFlops:
    from govray.evidence.reports.annex_xi import CountedFlops
    from govray.train.attest.counted_flops import HOW, row_flops

    return CountedFlops(row_flops(config), HOW)

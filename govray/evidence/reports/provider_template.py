"""The small file that a provider fills in: what no record of its model states.

It holds one commented line for each field that a draft lacks. As it stands it is a statement that
answers nothing; a line counts when its comment sign is taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from govray.evidence.reports.draft import Draft, shown
from govray.evidence.reports.provider_statement import SCHEMA, ProviderStatement
from govray.governance.formats.document import format_time

_EXAMPLES = {
    "summary_updated": "2026-11-30",
    "market_date": "2026-11-30",
    "latest_collection": "2026-10",
    "small_or_medium": "false",
    "code_of_practice": "false",
}


def provider_template(name: str, attestation: str, drafts: Sequence[Draft], *, at: datetime) -> str:
    """The YAML text. ``drafts``: made without a statement."""
    own = ProviderStatement.from_source(
        {"name": name, "version": 1, "attestation": attestation, "issued": format_time(at)},
        where="--name",
    )
    lines = [
        "# What no record of the model states. Take the # away from a line that you answer.",
        "# Sign with: govray sign FILE --key KEY. A signed line is your word. Leave out what you",
        "# do not know: the report says that it is missing.",
        f"schema: {SCHEMA}",
        f"name: {own.name}",
        f"version: {own.version}",
        f"attestation: {own.attestation}",
        f"issued: {own.issued}",
    ]
    told: set[str] = set()
    for draft in drafts:
        lines += ["", f"# {draft.title}"]
        for section in draft.sections:
            for field in section.fields:
                if field.state != "missing" or field.ask is None or field.ask in told:
                    continue
                told.add(field.ask)
                example = _EXAMPLES.get(field.ask, "…")
                lines += [f"# {section.number} {shown(field.label)}", f"#{field.ask}: {example}"]
    return "\n".join(lines) + "\n"

"""A model card as the Hugging Face Hub reads it: metadata in YAML, then Markdown with the lineage.

The metadata name no licence, since no record states the model's. They name no datasets, since
corpora have no names on the Hub. Text from records is escaped, so that it stays text.

Source: https://huggingface.co/docs/hub/model-cards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

from govray.evidence.exports.corpus_text import run_history
from govray.evidence.exports.verified_facts import LEVELS, UNKNOWN, CorpusFacts, VerifiedFacts
from govray.printable import printable

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")

_HISTORY = {
    "startedFrom": "Started from",
    "broughtByStart": "The start brings",
    "ancestor": "Ancestor",
    "selected": "Selected",
    "gated": "Gated",
    "memorization": "Found memorized",
    "removed": "Removed",
}


def model_card(facts: VerifiedFacts) -> bytes:
    metadata: dict[str, object] = {"tags": ["govray", "provenance"]}
    languages = sorted({tag for each in facts.trained for tag in each.described.languages or ()})
    if languages:
        metadata["language"] = languages
    header = yaml.safe_dump(metadata, sort_keys=True, allow_unicode=True)
    return f"---\n{header}---\n{_text(facts)}".encode()


def escaped(text: str) -> str:
    """``text`` on one line, of which Markdown and HTML take nothing for markup."""
    return _MARKUP.sub(r"\\\1", printable(text))


def _text(facts: VerifiedFacts) -> str:
    attestation = facts.attestation
    lines = [
        f"# {escaped(facts.name)}",
        "",
        "Written from the signed records of this model, after they verified. "
        "What no record states is left out, or called unknown.",
        "",
        "## Model",
        "",
        *_items(
            {
                "Architecture": facts.entrypoint or UNKNOWN,
                "Licence of the model": UNKNOWN,
                "Run": f"{attestation.run.id}, {attestation.steps} steps, "
                f"from {attestation.run.started} to {attestation.run.finished}",
                "Policy": f"{facts.policy}, {attestation.policy.digest}",
                "Attestation": facts.digest,
                "Signed by": f"{facts.signer}, under trust root {facts.trust_root}",
                "Assurance": facts.assurance,
                "Ledger": f"{attestation.ledger.size} leaves, root {attestation.ledger.root}",
            }
        ),
    ]
    if result := attestation.validation:
        measured = ", ".join(result.corpora or ()) or "as the training loop measured"
        lines += _items({"Validation": f"{result.metric} {result.value!r} ({measured})"})
    for kind, text in run_history(facts):
        lines += _items({_HISTORY[kind]: text})
    lines += [
        "",
        "## Training data",
        "",
        *_table(
            ("Corpus", "Licence", "Issuer", "Records", "Records read", "Tokens read", "Source"),
            [_data_row(each) for each in facts.trained],
        ),
        "",
        "## Lineage",
        "",
        "Which corpora's own gradient updated a layer group, and what can have reached it by any "
        "path.",
        "",
        *_table(
            ("Layer group", "Direct", "By any path"),
            [
                (group, _listed(facts.taint[group].direct), _listed(facts.taint[group].transitive))
                for group in facts.groups
            ],
        ),
        "",
        "## Levels of exclusion",
        "",
        *_table(
            ("Corpus", "Layer group", "Level"),
            [
                (each.name, group, f"{held} ({LEVELS[held]})")
                for each in facts.corpora
                for group, held in each.levels.items()
            ],
        ),
        "",
        "## Files",
        "",
        *_table(("File", "SHA-256"), [(each.name, each.sha256) for each in facts.files]),
        "",
        "## What this does not show",
        "",
        escaped(attestation.disclaimer),
        "",
    ]
    return "\n".join(lines)


def _data_row(corpus: CorpusFacts) -> tuple[str, ...]:
    stated = corpus.credential
    return (
        corpus.name,
        stated.license,
        stated.issuer,
        str(stated.records.count),
        str(corpus.records),
        str(corpus.tokens),
        corpus.described.source or UNKNOWN,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _items(pairs: dict[str, str]) -> list[str]:
    return [f"* {name}: {escaped(value)}" for name, value in pairs.items()]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(map(escaped, row))} |" for row in rows),
    ]

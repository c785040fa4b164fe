"""Runs over conversations and images, from corpora to a verified model. One rank, no Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

import govray
from govray.data import records_file, shard_file
from govray.data.arrow_rows import ArrowRows
from govray.data.corpus import build, unsigned_credential
from govray.data.rows import chat, tensor_record
from govray.errors import Refused, UsageError
from govray.governance.formats.document import format_time
from govray.governance.formats.row_schema import CHAT, RowSchema, image_schema
from govray.governance.policy.credential import Period
from govray.train.attest.memorization_audit import audit
from govray.train.driver.preparation import NOT_BY_TEMPLATE
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from tests.support.deployment import LICENCES, POLICY, Deployment
from tests.support.solo import run_here

IMAGES = image_schema((1, 4, 4), 3)
MONITOR = """
memorization:
  every: 2
  probe_rows: 4
  statistic: min_k
  odds: 2
  actions: {weak: flag}
"""
MODELS: Mapping[str, dict[str, Any]] = {
    "chat": {"hyperparameters": {"blocks": 2, "width": 32, "context": 32}},
    "images": {
        "entrypoint": "govray.engine.vit:VisionTransformer",
        "hyperparameters": {"image": [1, 4, 4], "classes": 3, "patch": 2, "blocks": 2, "width": 16},
    },
}


def conversation(number: int) -> bytes:
    said = "x" * 60 if number % 6 == 0 else f"number {number}?"
    return chat.encode(
        [{"role": "user", "content": said}, {"role": "assistant", "content": f"it is {number}"}]
    )


def image(number: int, schema: RowSchema = IMAGES) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (1, 4, 4), np.uint8)
    return tensor_record.encode(schema, {"image": pixels, "targets": np.array(number % 3)})


@dataclass
class Rows(Deployment):
    """A deployment whose corpora are of one kind."""

    kind: str = "chat"

    def add(self, corpus: str, *, until: datetime | None = None) -> None:
        make = conversation if self.kind == "chat" else image
        schema = CHAT if self.kind == "chat" else IMAGES
        self.put(corpus, [make(i) for i in range(40)], schema)

    def put(self, corpus: str, contents: list[bytes], schema: RowSchema | None) -> None:
        """Build a corpus of these records, and sign that they are of a schema."""
        license_, category = LICENCES[corpus]
        built = build(self.corpora, corpus, ((f"{i:03}", c) for i, c in enumerate(contents)))
        credential = unsigned_credential(
            built,
            license=license_,
            license_category=category if license_.startswith("LicenseRef") else None,
            issuer="issuer",
            sensitivity="public",
            valid=Period(
                from_=format_time(self.at - self.lifetime),
                until=format_time(self.at + self.lifetime),
            ),
            **({"rows": schema.to_json()} if schema else {}),
        )
        (self.corpora / corpus / "credential.dsse.json").write_bytes(
            credential.seal([self.signers["issuer"]])
        )

    def replace(self, corpus: str, contents: list[bytes], schema: RowSchema | None) -> None:
        for each in (self.corpora / corpus).iterdir():
            each.unlink()
        (self.corpora / corpus).rmdir()
        self.put(corpus, contents, schema)

    def trainer(self, **changes: Any) -> Any:
        value = self.experiment(max_steps=8, resources={"num_workers": 1}) | MODELS[self.kind]
        data = {**value["data"], "rows": self.kind} | changes.pop("data", {})
        return GovernedTrainer(parse_experiment(value | {"data": data} | changes, where="test"))


@pytest.fixture(params=["chat", "images"])
def rows(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    run_here(monkeypatch)
    return Rows(tmp_path, kind=request.param)


def test_a_run_ends_in_a_model_that_verifies_at_each_depth(rows: Rows) -> None:
    run = rows.trainer().train(attest=True)
    model = run / "model"
    [prepared] = (run.parent / records_file.PREPARED).iterdir()
    read = records_file.reader(prepared)
    summary = govray.verify(model, trust_root=rows.root)
    full = govray.verify(model, trust_root=rows.root, records=read)
    assert (summary.targets_bounded, full.targets_bounded) == (rows.kind == "chat", False)
    manifest = full.manifest.document
    assert manifest.rows == (CHAT if rows.kind == "chat" else IMAGES)
    config = json.loads((model / "govray.json").read_bytes())
    assert config["rows"] == manifest.rows.to_json()
    records = full.records
    for corpus in ("open-one", "weak-one", "acme"):
        stored = ArrowRows(prepared, manifest)
        for row in range(manifest.train_rows(corpus)):
            words = stored.row(corpus, row)
            counted = records.targets_of(corpus, np.array([row]))
            if rows.kind == "images":
                [span] = records.row_records(corpus, row)
                assert words.tobytes() == image(span.record)[-IMAGES.bytes :]
                assert counted == [1]
            else:
                [due] = chat.row_targets(shard_file.Rows(words, np.array([words.size])))
                assert counted == [due]
    assert any(each.corpus == "acme" for each in full.attestation.coverage)
    for leaf in full.ledger.steps:
        for use in leaf.corpora.values():
            assert use.targets == use.rows if rows.kind == "images" else use.targets >= 0


def test_a_template_that_is_not_used_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_here(monkeypatch)
    rows, tokenizer = Rows(tmp_path / "here"), tmp_path / "tokenizer.json"
    Tokenizer(models.BPE({"x": 0}, [])).save(str(tokenizer))

    def told() -> int:
        caplog.clear()
        preparation = rows.trainer(data={"tokenizer": str(tokenizer)}).preparation
        preparation.data(preparation.inputs(rows.at), rows.at, lambda: rows.signers["operator"])
        return caplog.text.count(NOT_BY_TEMPLATE)

    assert told() == 0
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert told() == 1


def test_other_kinds_are_refused_by_name(rows: Rows) -> None:
    other = "images" if rows.kind == "chat" else "chat"
    made = {"chat": (conversation(1), CHAT), "images": (image(1), IMAGES)}[other]
    rows.replace("open-two", [made[0]], made[1])
    told = f"corpus open-two: by its credential its records are {other}, and the run reads"
    with pytest.raises(Refused, match=told):
        rows.trainer().prepare()
    rows.replace("open-two", [b"text"], None)
    with pytest.raises(Refused, match="corpus open-two: by its credential its records are text"):
        rows.trainer().prepare()


def test_what_is_measured_is_text(rows: Rows) -> None:
    """A monitor that only flags measures nothing, and one that acts on it is refused."""

    def under(text: str) -> Any:
        return rows.trainer(
            governance={
                "policy": str(rows.sign_policy(text)),
                "trust_root": str(rows.root),
                "max_quarantined": 0.5,
            },
            data={"reserve": 0.5},
        )

    acting = MONITOR.replace("flag", "{action: gate, fallback: nothing}")
    told = f"what is measured is packed text, and the run reads {rows.kind}"
    with pytest.raises(Refused, match=told):
        under(POLICY + acting).train()
    run = under(POLICY + MONITOR).train(attest=True)
    found = govray.verify(run / "model", trust_root=rows.root).attestation
    assert found.memorization is not None
    assert not found.memorization.measured
    with pytest.raises(
        UsageError, match=f"an audit reads packed text, and the run read {rows.kind}"
    ):
        audit(run, at=format_time(rows.at))


def test_a_mixture_reads_a_corpus_more_often_and_moves_no_other_stream(rows: Rows) -> None:
    def uses(**data: Any) -> list[dict[str, int]]:
        run = rows.trainer(data=data, max_steps="data").train(attest=True)
        model = govray.verify(run / "model", trust_root=rows.root)
        leaves = model.ledger.steps
        return [{c: use.rows for c, use in leaf.corpora.items()} for leaf in leaves]

    def total(steps: list[dict[str, int]], corpus: str) -> int:
        return sum(step.get(corpus, 0) for step in steps)

    plain, mixed = uses(epochs=1), uses(epochs=1, mixture={"open-one": 2.0, "open-two": 0.5})
    assert len(plain) == len(mixed) == sum("acme" in step for step in plain)  # the longest
    for corpus in ("weak-one", "acme"):  # streams of their own
        assert [s.get(corpus) for s in plain] == [s.get(corpus) for s in mixed]
    if rows.kind == "images":  # the epoch of the stream ends within the run
        assert total(mixed, "open-one") == 2 * total(plain, "open-one")
        half = total(plain, "open-two") / 2
        assert total(mixed, "open-two") in (int(half), int(half) + 1)
    with pytest.raises(UsageError, match="mixture: no admitted corpus is called 'nobody'"):
        rows.trainer(data={"mixture": {"nobody": 2.0}}).train()
    with pytest.raises(UsageError, match=r"data.mixture.open-one"):
        rows.trainer(data={"mixture": {"open-one": 0}})

"""Runs under a monitor: gated, rolled back, killed and replayed. One rank, no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from govray.engine.memorization.probe_sharing import Probe
from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.coverage import Coverage
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, Measure, Side
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.train.attest.write_model import write_model
from govray.train.checkpoint import commit_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import events
from govray.train.run_folder.ledger_wal import recorded_leaves
from govray.train.state.snapshot import latest
from govray.train.worker import recorder, run_start
from govray.train.worker import run as worker
from tests.support.deployment import POLICY, Deployment
from tests.support.held_out import hold_out
from tests.support.killed_training import Killed, killed_after
from tests.support.monitored_world import EVEN, half_of
from tests.support.solo import run_here

SECTION = """
memorization:
  every: 2
  probe_rows: 32
  statistic: min_k
  odds: 1.5
  fdr: 0.5
  rollbacks: 1
  actions:
    open: {action: gate, fallback: nothing}
    contracts: rollback
    weak: rollback
"""
STEPS = 16
ROWS = 32

KNOWN = {"acme": half_of(32)}
"""The counts of a profile with an effect. In a domain of one corpus, eight profiles and one
rollback want 2 * 16 in all: two such profiles have it."""
IN_THE_TRUNK = half_of(96)
"""The same in a domain of three corpora, which want 3 * 32 in all."""

Memorizes = Callable[[str, int, int], bool]
"""(corpus, branch, step) → whether the scorer says so."""


class Scripted:
    """Says which corpora show an effect, and looks at no model."""

    memorizes: Memorizes = staticmethod(lambda corpus, branch, step: False)
    calls: list[tuple[int, int]]

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def profile(
        self, step: int, probes: Sequence[Probe], *, section: Monitoring, branch: int
    ) -> EntropyProfile:
        type(self).calls.append((branch, step))
        assert all(p.tensors is not None and len(p.tensors["tokens"]) == len(p) for p in probes)
        assert not any(set(p.probe_units) & set(p.reserve_units) for p in probes)
        return EntropyProfile(
            branch=branch,
            step=step,
            statistic=section.statistic,
            measures=tuple(
                Measure(
                    corpus=probe.corpus,
                    layer="head",
                    probe=Side(records=ROWS, entropy=1.0),
                    reserve=Side(records=ROWS, entropy=1.0),
                    top=KNOWN.get(probe.corpus, IN_THE_TRUNK)
                    if self.memorizes(probe.corpus, branch, step)
                    else EVEN,
                )
                for probe in probes
            ),
        )


def scripted_here(patch: pytest.MonkeyPatch) -> Iterator[type[Scripted]]:
    run_here(patch)
    patch.setattr(run_start, "Monitor", Scripted)
    Scripted.calls = []
    yield Scripted
    Scripted.memorizes = staticmethod(lambda corpus, branch, step: False)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Scripted]]:
    yield from scripted_here(monkeypatch)


def rolls_back(corpus: str) -> Memorizes:
    """Its own evidence, on the first branch."""
    return staticmethod(lambda name, branch, step: name == corpus and step >= 6 and branch == 0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment in which tests find the runs below."""
    return Deployment(tmp_path_factory.mktemp("shared") / "here", policy_text=POLICY + SECTION)


@pytest.fixture(scope="module")
def undisturbed(shared: Deployment) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for _ in scripted_here(patch):
            run = trainer_of(shared).train()
    return run


@pytest.fixture(scope="module")
def rolled_back(shared: Deployment) -> tuple[Path, VerifiedModel]:
    """A run whose adapter's corpus is rolled back, with all of its commits."""
    with pytest.MonkeyPatch.context() as patch:
        for made in scripted_here(patch):
            made.memorizes = rolls_back("acme")
            found = attested(shared, trainer_of(shared, kept=9))
    return found


@pytest.fixture
def here(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "here", policy_text=POLICY + SECTION)


def trainer_of(here: Deployment, *, kept: int = 1, **changes: Any) -> GovernedTrainer:
    value = here.experiment(
        **changes,
        max_steps=STEPS,
        checkpoint={"every_steps": 4, "save_trial_latest": kept},
        resources={"num_workers": 1},
    )
    value["data"] |= {"reserve": 0.5}  # type: ignore[operator]
    return GovernedTrainer(parse_experiment(value, where="test"))


def attested(here: Deployment, trainer: GovernedTrainer) -> tuple[Path, VerifiedModel]:
    run = trainer.train()
    write_model(run, trainer.signer())
    return run, verify(run / "model", trust_root=here.root)


def tensors(run: Path, name: str = model_folder.WEIGHTS) -> bytes:
    found = latest(run)
    assert found is not None
    assert found[1] == STEPS
    content = commit_folder.load(found[0]).files[name]
    assert isinstance(content, bytes)
    return content


def read_steps(model: VerifiedModel, corpus: str) -> list[tuple[int, int]]:
    return [(leaf.branch, leaf.step) for leaf in model.ledger.steps if corpus in leaf.corpora]


ACME = model_folder.adapter_files("acme")[1]


def test_a_gated_corpus_is_left_out_from_the_next_step_on(
    here: Deployment, scripted: type[Scripted]
) -> None:
    scripted.memorizes = staticmethod(lambda corpus, _, step: corpus == "open-one" and step >= 4)
    run, model = attested(here, trainer_of(here))
    [gate] = model.gates
    assert (gate.corpus, gate.step, gate.reason) == ("open-one", 8, "memorization")
    assert max(read_steps(model, "open-one")) <= (0, 7)
    [event] = [e for e in events.read(run) if isinstance(e, events.Memorized)]
    assert event.text == (
        "open-one deviates from its reserve after step 7 (head): left out from step 8 on"
    )
    findings = model.attestation.memorization
    assert findings is not None
    assert findings.decisions == (event.decision,)
    calls = list(scripted.calls)
    # A replay follows the record, and measures nothing.
    outcome = replay(run)
    assert outcome.identical
    assert scripted.calls == calls


def test_where_a_run_ends_early_nothing_follows_from_its_last_profile(
    here: Deployment, scripted: type[Scripted]
) -> None:
    """The event says what the attestation derives; the control is the test above."""
    hold_out(here)
    scripted.memorizes = staticmethod(lambda corpus, _, step: corpus == "open-one" and step >= 4)
    early = {"patience": 3, "min_delta": 1000.0}
    section = {
        "corpora": str(here.folder / "validation"),
        "every_steps": 2,
        "early_stopping": early,
    }
    run, model = attested(here, trainer_of(here, validation=section))
    assert model.attestation.steps == 8
    [event] = [e for e in events.read(run) if isinstance(e, events.Memorized)]
    assert event.text.endswith("after step 7 (head): noticed at the end, nothing followed")
    assert model.attestation.memorization is not None
    assert model.attestation.memorization.decisions == (event.decision,)
    assert not model.gates


REROUTES = SECTION.replace("fallback: nothing", "fallback: narrow")
NARROW = '  narrow: {layers: [head], adapter: "{corpus}", rank: 2}\nrules:'


def test_a_gate_that_routes_leaves_every_row_where_it_was(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = POLICY.replace("rules:", NARROW, 1) + REROUTES
    here = Deployment(tmp_path / "here", policy_text=text)
    undisturbed, calm = attested(here, trainer_of(here))
    scripted.memorizes = staticmethod(lambda corpus, _, step: corpus == "open-one" and step >= 4)
    run, model = attested(here, trainer_of(here))
    [gate] = model.gates
    assert (gate.corpus, gate.step, gate.fallback) == ("open-one", 8, "narrow")
    [event] = [e for e in events.read(run) if isinstance(e, events.Memorized)]
    assert event.text.endswith("(head): rerouted to narrow from step 8 on")
    # Every leaf is the same, but for the route that it names from the gate on.
    route = model.routes.fallbacks["open-one"].route.digest
    for before, after in zip(calm.ledger.steps, model.ledger.steps, strict=True):
        uses = dict(before.corpora)
        if after.step >= 8 and "open-one" in uses:
            uses["open-one"] = uses["open-one"].model_copy(update={"route": route})
        assert after == before.model_copy(update={"corpora": uses})
    # The fallback's adapter learned after the gate only, and what nothing trained is not kept.
    own = model_folder.adapter_files("open-one")[1]
    with pytest.raises(KeyError):
        tensors(undisturbed, own)
    assert tensors(run) != tensors(undisturbed)
    assert ("open-one", "adapter:open-one") in {(c.corpus, c.group) for c in coverage_of(model)}
    assert ("open-one", "adapter:open-one") not in {(c.corpus, c.group) for c in coverage_of(calm)}
    # A domain of its own hears nothing of it, although it reads the trunk that changed.
    assert [d.action for d in model.attestation.memorization.decisions] == ["gate"]  # type: ignore[union-attr]
    outcome = replay(run)
    assert outcome.identical, (outcome.leaf, outcome.tensor)
    assert replay(run, steps=(12, STEPS)).identical
    # Killed after the gate, it comes to the same end.
    killed_after(10, trainer_of(here).train, monkeypatch)
    [killed] = [f for f in run.parent.glob("tiny-*") if f not in (run, undisturbed)]
    resumed = replace(trainer_of(here), resume=killed)
    resumed.train()
    write_model(killed, resumed.signer())
    assert verify(killed / "model", trust_root=here.root).gates == model.gates
    for name in (model_folder.WEIGHTS, own, ACME):
        assert tensors(killed, name) == tensors(run, name)
    assert lines(killed) == lines(run)


def coverage_of(model: VerifiedModel) -> Sequence[Coverage]:
    return model.attestation.coverage


def test_a_fallback_that_is_wider_is_refused_before_data_is_read(
    tmp_path: Path, scripted: type[Scripted]
) -> None:
    text = POLICY + SECTION.replace("weak: rollback", "weak: {action: gate, fallback: everything}")
    here = Deployment(tmp_path / "here", policy_text=text)
    with pytest.raises(Refused, match=r"weak-one.*layer group 'embedding' weight 1, and") as error:
        trainer_of(here).train()
    assert "rule weak" in str(error.value)
    assert not (here.folder / "prepared").exists()


def test_a_rollback_restores_the_trunk_bit_for_bit(
    undisturbed: Path, rolled_back: tuple[Path, VerifiedModel], scripted: type[Scripted]
) -> None:
    """Whatever happens to a corpus with an adapter of its own, the trunk does not notice."""
    run, model = rolled_back
    findings = model.attestation.memorization
    assert findings is not None
    # Calm after step 5, so left out from 6 on; the commit before that is of step 4.
    assert [(d.action, d.step, d.since) for d in findings.decisions] == [("rollback", 9, 6)]
    assert findings.branches == (0, 4)
    assert [(g.branch, g.step, g.corpus) for g in model.gates] == [(1, 6, "acme")]
    assert max(read_steps(model, "acme")) <= (1, 5)
    assert tensors(run) == tensors(undisturbed)
    assert tensors(run, ACME) != tensors(undisturbed, ACME)  # the control
    assert replay(run).identical
    # From a commit on the new branch, past steps that the old one did too.
    assert replay(run, steps=(8, STEPS)).identical


def test_a_rollback_of_the_trunk_changes_it(
    shared: Deployment, undisturbed: Path, scripted: type[Scripted]
) -> None:
    """The control of the test above: where the evidence lies in the trunk's domain, it moves."""
    scripted.memorizes = rolls_back("weak-one")
    run, model = attested(shared, trainer_of(shared))
    assert model.attestation.memorization is not None
    assert model.attestation.memorization.branches == (0, 4)
    assert tensors(run) != tensors(undisturbed)
    # What the trunk is has no way to an adapter's own decisions, but its rows do read the trunk.
    assert [d.corpus for d in model.attestation.memorization.decisions] == ["weak-one"]


@pytest.mark.parametrize("where", ["noted", "on the new branch", "lost"])
def test_a_rollback_survives_a_crash(
    shared: Deployment,
    rolled_back: tuple[Path, VerifiedModel],
    scripted: type[Scripted],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    scripted.memorizes = rolls_back("acme")
    whole, _ = rolled_back
    before = {*whole.parent.glob("tiny-*")}
    kills = iter([True])

    with monkeypatch.context() as patched:
        if where == "noted":  # the profile is on the disk, the event is not
            patched.setattr(recorder, "Memorized", _dies(kills, recorder.Memorized))
        else:
            done_of = worker.Run._done
            at = 5 if where == "lost" else 11

            def done(run: worker.Run, *arguments: Any) -> Any:
                found = done_of(run, *arguments)
                branch = run._gating.branch(int(found["step"]))
                if branch == 1 and found["step"] >= at and next(kills, False):
                    run._commits.settle(None)
                    raise Killed
                return found

            patched.setattr(worker.Run, "_done", done)
        with pytest.raises(Killed):
            trainer_of(shared).train()
    [run] = {*whole.parent.glob("tiny-*")} - before
    if where == "lost":  # the machine that wrote the event log is gone
        (run / events.FILE).unlink()
    resumed = replace(trainer_of(shared), resume=run)
    assert resumed.train() == run
    write_model(run, resumed.signer())
    model = verify(run / "model", trust_root=shared.root)
    assert model.attestation.memorization is not None
    assert model.attestation.memorization.branches == (0, 4)
    for name in (model_folder.WEIGHTS, ACME):
        assert tensors(run, name) == tensors(whole, name)
    assert lines(run) == lines(whole)


def _dies(kills: Iterator[bool], real: type) -> Callable[..., Any]:
    def made(*arguments: Any, **named: Any) -> Any:
        if next(kills, False):
            raise Killed
        return real(*arguments, **named)

    return made


def lines(run: Path) -> list[bytes]:
    return [leaf.line for leaf in recorded_leaves(run)]


def test_the_engines_monitor_leaves_no_trace(
    shared: Deployment, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same policy and data, measured and not: equal weights, and measures of every layer."""
    run_here(monkeypatch)
    run, model = attested(shared, trainer_of(shared))
    findings = model.attestation.memorization
    assert findings is not None
    if findings.decisions:  # a tiny model may well learn its few records by heart
        pytest.skip(f"it was found to memorize: {findings.decisions}")
    assert tensors(run) == tensors(undisturbed)
    assert {measure.layer for measure in findings.measures} >= {"block.0", "head"}

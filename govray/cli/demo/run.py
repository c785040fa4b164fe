"""`govray demo`: the main job, end to end, on data that every machine already has.

Each of the five stages calls the library as a user would. The printed numbers are read back from
what those calls left on disk.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

import safetensors.torch
from torch import nn

import govray
from govray.cli.demo import WORKERS, supplier
from govray.cli.demo.deployment import PARTS_LIST, Deployment, deploy
from govray.cli.demo.findings import Refusal, Story, planted_list, tabulate
from govray.cli.output import StageBar, line
from govray.data.installed_python import SourceCorpus
from govray.data.tokenizer import ByteTokenizer
from govray.engine.memorization.exposure import measure
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.errors import GovrayError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.record.prepare_manifest import Quarantined
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.service.pages.charts.entropy_chart import charts
from govray.platform.service.pages.charts.heatmap import heat_map
from govray.platform.service.pages.rendering import environment
from govray.platform.store.lineage import lineage
from govray.train.attest.write_model import final_checkpoint, write_model
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.replay.replay_outcome import evidence
from govray.train.replay.replayed_run import replay

STAGES = 5
CANDIDATES = 10 ** len(supplier.PLANTED)


class Terminal:
    """Where the demo shows what it does: each stage a line, each long step a bar."""

    def stage(self, number: int, name: str, text: str) -> None:
        line(f"{number}/{STAGES} {name:<12} {text}")

    def line(self, text: str) -> None:
        line(f"                 {text}")

    def bar(self, number: int, name: str, total: int) -> StageBar:
        return StageBar(f"{number}/{STAGES} {name:<12}", total)


@dataclass
class _Timed:
    seconds: float = 0.0


def run_demo(output: Path, screen: Terminal, *, steps: int, replayed: bool = True) -> Story:
    """Run all five stages under ``output`` and write ``report.html`` there. Ray has started.

    Args:
        output: New or empty folder.
        replayed: Whether the run is replayed without the supplier's notes.
    """
    at = datetime.now(UTC).replace(microsecond=0)

    with screen.bar(1, "credentials", 1) as bar:
        deployment = deploy(output, _key_folder(), at=at, on_corpus=lambda d, t: bar.update(d, t))
    packages = [c for c in deployment.sources if not c.corpus.endswith(".vendored")]
    screen.stage(
        1,
        "credentials",
        f"{len(deployment.sources) + 2} corpora: standard library, {len(packages) - 1} packages, "
        "1 supplier contract and 1 parts list (synthetic)",
    )

    losses: list[float] = []
    experiment = experiment_of(output, deployment, steps)
    training = _Timed()
    with screen.bar(2, "admission", 1) as admission:
        trainer = GovernedTrainer(
            experiment, on_admission=lambda done, total: admission.update(done, total)
        )
        prepared = trainer.prepare()
        manifest = prepared.manifest
    refusals = _refusals(manifest.quarantine, deployment.sources)
    admitted = sum(manifest.records(corpus.corpus) for corpus in manifest.corpora)
    quarantined = sum(entry.records for entry in manifest.quarantine)
    told = f"{admitted:,} records of {len(manifest.corpora)} corpora admitted"
    screen.stage(2, "admission", f"{told}, {quarantined:,} quarantined")
    for refusal in refusals:
        more = f" (+{refusal.more})" if refusal.more else ""
        screen.line(f"{refusal.records:>7,}  rule {refusal.rule:<16} {refusal.example}{more}")

    with screen.bar(3, "training", steps) as bar, _timing(training):

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            losses.append(metrics["loss"])  # its data are text, so each step has one
            bar.update(step + 1, steps, f"loss {losses[0]:.2f} → {losses[-1]:.2f}")

        run = Path(GovernedTrainer(experiment, on_step=on_step).fit().path)
    size = _parameters(run)
    screen.stage(
        3,
        "training",
        f"gpt {size / 1e6:.1f}M, {experiment.hyperparameters['blocks']} blocks  {steps} steps  "
        f"loss {losses[0]:.2f} → {losses[-1]:.2f}  {_clock(training.seconds)}",
    )

    outcome, replaying = None, _Timed()
    if replayed:
        with screen.bar(4, "replay", steps) as bar, _timing(replaying):
            outcome = replay(
                run,
                without=supplier.CORPUS,
                signer=trainer.signer(),
                on_step=lambda step, _: bar.update(step + 1, steps),
            )
        took = f"same run without {supplier.CORPUS}  {_clock(replaying.seconds)}"
        screen.stage(4, "replay", took)
        if not outcome.identical:
            raise GovrayError(
                f"the replay gave other bytes: {outcome.tensor or outcome.leaf}",
                where=f"replay without {supplier.CORPUS}",
                do="Non-interference does not hold here: please report this",
            )
    else:
        screen.stage(4, "replay", "left out")

    model = output / "model"
    replays = [each.replay for each in evidence(run, at=datetime.now(UTC))]
    shutil.copytree(str(write_model(run, trainer.signer(), replays)), model)
    checking = _Timed()
    with _timing(checking):
        verified = govray.verify(model, trust_root=deployment.root)
    screen.stage(
        5, "attestation", f"signed, then verified from the files alone in {checking.seconds:.1f} s"
    )
    with_adapter, without_adapter = _ranks(model, experiment)
    held = sum(
        part.tokens + (part.reserve.tokens if part.reserve else 0)
        for corpus in manifest.corpora
        for part in corpus.parts
    )
    root = quote(str(deployment.root))
    story = Story(
        versions={
            "govray": govray.__version__,
            "Ray": importlib.metadata.version("ray"),
            "torch": importlib.metadata.version("torch"),
            "Python": platform.python_version(),
        },
        corpora=len(deployment.sources) + 2,
        admitted=admitted,
        quarantined=quarantined,
        refusals=refusals,
        steps=steps,
        losses=losses,
        train_seconds=training.seconds,
        replay_seconds=replaying.seconds,
        share_read=_tokens_read(verified) / held,
        table=tabulate(verified.coverage),
        adapter=supplier.CORPUS,
        adapter_bytes=sum(
            (model / name).stat().st_size for name in model_folder.adapter_files(supplier.CORPUS)
        ),
        base_digest=next(s.sha256 for s in verified.subjects if s.name == model_folder.WEIGHTS),
        replay_digest=outcome.replayed[model_folder.WEIGHTS] if outcome else None,
        rank_with=with_adapter,
        rank_without=without_adapter,
        candidates=CANDIDATES,
        listed=planted_list(verified, PARTS_LIST),
        verified=verified,
        verify_seconds=checking.seconds,
        commands=(
            f"govray verify {quote(str(model))} --trust-root {root}",
            f"govray adapter remove {quote(str(model))} {supplier.CORPUS} "
            f"--key {_tilde(deployment.operator_key)} --trust-root {root}",
            f"govray serve --no-auth --storage {quote(f'{output}/runs')} --trust-root {root}",
            "govray init my-deployment",
        ),
    )
    (output / "report.html").write_text(render(story), "utf-8")
    return story


def experiment_of(output: Path, deployment: Deployment, steps: int) -> Experiment:
    """What the demo trains; its runs lie in ``output``."""
    return parse_experiment(
        {
            "name": "demo",
            "hyperparameters": {"blocks": 4, "width": 96, "context": 256},
            "data": {
                "corpora": str(deployment.corpora),
                "rows_per_step": {
                    "everything": 6,
                    "upper_half": 1,
                    "lists": {"rows": 12, "every": 2},
                    "removable": 2,
                },
                "reserve": 0.5,  # of few pages enough on both sides; of the rest little is read
                "epochs": 100,
            },
            "governance": {
                "policy": str(deployment.policy),
                "trust_root": str(deployment.root),
                "max_quarantined": 0.6,
            },
            "optimizer": {"lr": 3.0e-3, "warmup_steps": 20},
            "resources": {"num_workers": WORKERS},
            "max_steps": steps,
            "checkpoint": {"every_steps": steps},
            "storage_path": str(output / "runs"),
            "attestation_key": str(deployment.operator_key),
        },
        where="demo",
    )


def _refusals(
    quarantine: Sequence[Quarantined], sources: Sequence[SourceCorpus]
) -> tuple[Refusal, ...]:
    """Quarantine by rule, the corpus with most records as the example."""
    reasons = {found.corpus: found.reason for found in sources}
    rules: dict[str, list[Quarantined]] = {}
    for entry in quarantine:
        rules.setdefault(entry.rule, []).append(entry)
    refusals = []
    for rule, entries in rules.items():
        largest = max(entries, key=lambda entry: entry.records)
        refusals.append(
            Refusal(
                records=sum(entry.records for entry in entries),
                rule=rule,
                example=f"{largest.corpus}: {reasons.get(largest.corpus, largest.reason)}",
                more=len(entries) - 1,
            )
        )
    return tuple(sorted(refusals, key=lambda refusal: -refusal.records))


def _tokens_read(verified: VerifiedModel) -> int:
    """Loss targets that the run read; a corpus counts once, however many groups it reached."""
    read: dict[str, int] = {}
    for entry in verified.attestation.coverage:
        read[entry.corpus] = max(read.get(entry.corpus, 0), entry.tokens)
    return sum(read.values())


def _ranks(model: Path, experiment: Experiment) -> tuple[int, int]:
    gpt = GPT(**{"vocabulary": ByteTokenizer().vocabulary} | experiment.hyperparameters)
    gpt.load_state_dict(safetensors.torch.load_file(model / model_folder.WEIGHTS))
    gpt.eval()
    config_file, weights_file = model_folder.adapter_files(supplier.CORPUS)
    config: Any = canonical_json.parse((model / config_file).read_bytes())
    adapters = Adapters(gpt, {supplier.CORPUS: config["r"]}, seed=experiment.seed)
    adapters.load(supplier.CORPUS, config, safetensors.torch.load_file(model / weights_file))
    without = candidate_rank(gpt)
    with adapters.active(supplier.CORPUS):
        return candidate_rank(gpt), without


def _parameters(run: Path) -> int:
    committed = final_checkpoint(run, read_record(run))
    return sum(tensor.numel() for tensor in tensors_of(committed, model_folder.WEIGHTS).values())


def _key_folder() -> Path:
    """Where a demo's throw-away keys live: outside the output, and only for this user."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "govray" / f"demo-{secrets.token_hex(4)}"


def _tilde(path: Path) -> str:
    """A path as a shell takes it, with ``~`` for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@contextmanager
def _timing(timed: _Timed) -> Iterator[None]:
    began = time.perf_counter()
    yield
    timed.seconds = time.perf_counter() - began


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def candidate_rank(model: nn.Module) -> int:
    """Rank of the planted number among all candidates, by total log-loss: 1 means that the model
    prefers it to all others. ``model``: of bytes."""
    width = len(supplier.PLANTED)
    others = [f"{number:0{width}d}" for number in range(CANDIDATES)]
    others.remove(supplier.PLANTED)
    texts = [f"{supplier.PREFIX}{secret}".encode() for secret in (supplier.PLANTED, *others)]
    found = measure(model, texts[0], texts[1:], CANDIDATES, batch=500)
    assert found.rank is not None  # all candidates were scored
    return found.rank


def render(story: Story) -> str:
    """The story as one HTML file: no network, no script, prints on paper."""
    model = story.verified
    document = lineage(model.attestation, model.digest, model.replayed_by)
    section = model.policy.document.memorization
    profile = (
        charts(model.ledger.profiles, section, model.attestation.memorization) if section else ()
    )
    style = files("govray.platform.service.pages").joinpath("static/govray.css").read_text("utf-8")
    return (
        environment("govray.cli.demo")
        .get_template("report.html")
        .render(
            story=story,
            document=document,
            map=heat_map(document),
            profile=profile,
            linked=(),
            style=style,
        )
    )

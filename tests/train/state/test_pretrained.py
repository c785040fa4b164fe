"""A start from existing weights: filled whole or refused, and with what it brings on record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

import govray
from govray.cli import main
from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.gpt import GPT, loss  # noqa: F401  # the entrypoint finds it here
from govray.engine.model.layer_groups import layer_groups
from govray.errors import Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.train.driver.planned_run import read_pretrained
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.pretrained_start import Start
from govray.train.loop.entrypoint import declared_start
from govray.train.loop.until_govern import discover
from govray.train.replay.replayed_run import replay
from govray.train.state.pretrained import (
    check_fits,
    find_weights,
    load_rows,
    load_start,
    read_start,
)
from tests.support.deployment import Deployment
from tests.support.ranks import RankPool
from tests.support.solo import run_here
from tests.support.world import AT, World

Tensors = dict[str, Tensor]

NO_ROOT = b""
"""No trust root is looked at for weights outside a model folder."""


def gpt(seed: int, **changes: Any) -> GPT:
    torch.manual_seed(seed)
    return GPT(**({"blocks": 2, "width": 16, "context": 8, "vocabulary": 11} | changes))


def save(model: nn.Module, path: Path) -> Path:
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(tensors, path)
    return path


def start_of(path: Path, model: nn.Module) -> Start:
    return read_start(find_weights(path), layer_groups(model), trust_root=NO_ROOT, at=AT)


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_file_a_folder_and_shards_fill_the_model_alike(tmp_path: Path) -> None:
    source = gpt(1)
    save(source, tmp_path / model_folder.WEIGHTS)
    (tmp_path / "optimizer.safetensors").write_bytes(b"somebody else's")
    shards = tmp_path / "shards"
    shards.mkdir()
    items = list(source.state_dict().items())
    safetensors.torch.save_file(dict(items[:4]), shards / "model-00001-of-00002.safetensors")
    safetensors.torch.save_file(dict(items[4:]), shards / "model-00002-of-00002.safetensors")
    for path, files in ((tmp_path / model_folder.WEIGHTS, 1), (tmp_path, 1), (shards, 2)):
        model = gpt(2)
        assert not same(model, source)
        start = start_of(path, model)
        assert len(start.files) == files
        with torch.device("meta"):
            check_fits(gpt(2), start)
        load_start(model, start)
        assert same(model, source)


def drop(tensors: Tensors) -> None:
    del tensors["head.weight"]


def add(tensors: Tensors) -> None:
    tensors["extra.weight"] = torch.zeros(2)


def reshape(tensors: Tensors) -> None:
    tensors["head.weight"] = tensors["head.weight"].T.contiguous()


def quantise(tensors: Tensors) -> None:
    tensors["head.weight"] = tensors["head.weight"].to(torch.int8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, r"missing: head\.weight"),
        (add, r"unexpected: extra\.weight"),
        (reshape, r"another shape: head\.weight is \(16, 11\), the model's \(11, 16\)"),
        (quantise, r"another dtype: head\.weight"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_filled(
    change: Callable[[Tensors], None], message: str, tmp_path: Path
) -> None:
    tensors = dict(gpt(1).state_dict())
    change(tensors)
    safetensors.torch.save_file(tensors, tmp_path / model_folder.WEIGHTS)
    model = gpt(2)
    start = start_of(tmp_path, model)
    with pytest.raises(UsageError, match=message):
        check_fits(model, start)
    with pytest.raises(UsageError, match=message):
        load_start(model, start)
    assert same(model, gpt(2))


def test_a_tied_tensor_may_stand_under_any_of_its_names(tmp_path: Path) -> None:
    source = gpt(1, tied=True)
    tensors = {name: value.clone() for name, value in source.state_dict().items()}
    path = tmp_path / model_folder.WEIGHTS
    for left_out in ((), ("head.weight",), ("embedding.tokens.weight",)):
        kept = {name: value for name, value in tensors.items() if name not in left_out}
        safetensors.torch.save_file(kept, path)
        model = gpt(2, tied=True)
        check_fits(model, start_of(path, model))
        load_start(model, start_of(path, model))
        assert same(model, source)
        assert model.head.weight is model.embedding.tokens.weight
    tensors["head.weight"] += 1
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(
        UsageError, match=r"tokens\.weight has other numbers .* may tie what the file doesn't"
    ):
        load_start(gpt(2, tied=True), start_of(path, gpt(2, tied=True)))


class Altering(nn.Module):
    """Loads what it is given, and holds something else in one of three ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        one = torch.zeros(4)
        self.register_buffer("mean", one)
        self.register_buffer("trend", one if how == "shares" else one.clone())
        kind = torch.int8 if how == "wraps" else torch.int64
        self.register_buffer("count", torch.zeros(1, dtype=kind))
        if how == "converts":
            self.register_load_state_dict_post_hook(self._double)

    def _double(self, *_: Any) -> None:
        self.weight.data.mul_(2)

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.weight


@pytest.mark.parametrize(
    ("how", "named"),
    [("plain", None), ("shares", "mean"), ("converts", "weight"), ("wraps", "count")],
)
def test_a_model_that_holds_other_numbers_than_its_file_is_refused(
    how: str, named: str | None, tmp_path: Path
) -> None:
    path = tmp_path / model_folder.WEIGHTS
    tensors: Tensors = {
        "weight": torch.arange(4.0, dtype=torch.float64),
        "mean": torch.ones(4),
        "trend": torch.full((4,), torch.nan),
        "count": torch.tensor([300]),
    }
    safetensors.torch.save_file(tensors, path)
    model = Altering(how)
    start = read_start([path], {}, trust_root=NO_ROOT, at=AT)
    check_fits(model, start)
    rows = {"weight": torch.zeros(4)}
    if named is None:
        load_start(model, start)
        load_rows(model, rows, start, 0, 1)
        assert model.weight.tolist() == rows["weight"].tolist() == [0.0, 1.0, 2.0, 3.0]
        tensors["weight"][1] = 1e300  # float32 has no such number
        safetensors.torch.save_file(tensors, path)
        named, start = "weight", read_start([path], {}, trust_root=NO_ROOT, at=AT)
    with pytest.raises(UsageError, match=f"tensor {named} has other numbers"):
        load_start(model, start)
    if how != "converts":  # rows are copied, and no hook of the model runs
        with pytest.raises(UsageError, match=f"tensor {named} has other numbers"):
            load_rows(model, rows, start, 0, 1)


@pytest.mark.parametrize("loaded_by_model", [False, True])
def test_a_file_that_changed_since_is_refused(tmp_path: Path, loaded_by_model: bool) -> None:
    path = save(gpt(1), tmp_path / model_folder.WEIGHTS)
    model = gpt(2)
    groups = layer_groups(model)
    start = read_start([path], groups, trust_root=NO_ROOT, at=AT, loaded_by_model=loaded_by_model)
    save(gpt(3), path)
    with pytest.raises(Refused, match="changed since"):
        load_start(model, start)
    assert same(model, gpt(2))
    path.unlink()
    with pytest.raises(UsageError, match="not readable"):
        load_start(model, start)


@pytest.mark.parametrize("name", ["nothing", "x" * 400])
def test_a_name_of_no_weights_is_refused_by_what_names_it(name: str) -> None:
    with pytest.raises(UsageError, match="no such file or folder") as refused:
        find_weights(Path(name))
    assert refused.value.where == f"pretrained {name}"


def _overtaken(folder: str) -> str:
    """What a rank says of weights that rank 0 changes after all have looked at them."""
    path = Path(folder) / model_folder.WEIGHTS
    model = gpt(2)
    start = start_of(path, model)
    dist.barrier()
    if dist.get_rank() == 0:
        save(gpt(3), path)
    try:
        load_start(model, start)
    except Refused as error:
        return str(error)
    return "went on"


def test_what_rank_zero_refuses_every_rank_refuses(two_ranks: RankPool, tmp_path: Path) -> None:
    save(gpt(1), tmp_path / model_folder.WEIGHTS)
    first, second = two_ranks.run(_overtaken, str(tmp_path))
    assert first == second
    assert "changed since" in first


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def attested(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.deploy(tmp_path_factory.mktemp("attested") / "model")


def brought(path: Path, root: bytes, groups: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    return dict(read_start(find_weights(path), groups, trust_root=root, at=AT).taint)


def test_a_model_that_verifies_brings_its_attested_taint_by_tensor(
    world: World, attested: Path
) -> None:
    model = world.verify(attested).attestation
    groups = {g.group: g.parameters for g in model.groups}
    expected = {entry.group: entry.transitive for entry in model.taint if entry.group in groups}
    assert "alpha" in expected["embedding"]
    assert "acme" not in expected["embedding"]
    for path in (attested, attested / model_folder.WEIGHTS):
        assert brought(path, world.root, groups) == expected
    # Other groups, and a tensor that nothing is known of.
    cut = {"trunk": (*groups["embedding"], *groups["block.0"]), "new": ("adapter.weight",)}
    union = tuple(sorted({*expected["embedding"], *expected["block.0"]}))
    assert brought(attested, world.root, cut) == {"trunk": union, "new": ("unknown",)}


def test_a_model_that_does_not_verify_here_is_unknown(
    world: World, attested: Path, tmp_path: Path
) -> None:
    groups = {"head": ("head.weight",)}
    assert brought(attested, world.root, groups)["head"] != ("unknown",)
    assert brought(attested, World().root, groups) == {"head": ("unknown",)}
    copy = Path(shutil.copytree(attested, tmp_path / "copy"))
    (copy / model_folder.WEIGHTS).write_bytes(
        (copy / model_folder.WEIGHTS).read_bytes()[:-1] + b"\1"
    )
    assert brought(copy, world.root, groups) == {"head": ("unknown",)}


def test_a_file_put_into_a_model_folder_does_not_borrow_its_attestation(
    world: World, attested: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(attested, tmp_path / "copy"))
    (copy / "notes").mkdir()
    path = save(gpt(1), copy / "notes" / "start.safetensors")
    assert brought(path, world.root, {"head": ("head.weight",)}) == {"head": ("unknown",)}


@pytest.fixture
def here(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "here")


def experiment(deployment: Deployment, **changes: Any) -> Any:
    return parse_experiment(deployment.experiment(**changes), where="test")


def test_a_hugging_face_folder_is_a_start_with_no_word_more(here: Deployment) -> None:
    """The entrypoint declares it; everything it fills is `unknown`."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    folder = here.folder / "gpt2"
    CausalLM(32, 257, config=config).language_model.save_pretrained(folder)
    named = {"entrypoint": "govray.engine.huggingface:CausalLM"}
    value = experiment(here, **named, hyperparameters={"context": 32, "path": str(folder)})
    assert declared_start(value) == [folder / model_folder.WEIGHTS]
    fresh = experiment(here, **named, hyperparameters={"context": 32, "config": config})
    assert declared_start(fresh) == []

    trainer = GovernedTrainer(value)
    inputs = trainer.preparation.inputs(here.at)
    found = discover(trainer.train_loop_per_worker, dict(trainer.loop_config), {})
    start = read_pretrained(trainer, inputs, found, here.at)
    assert start is not None
    assert start.loaded_by_model
    assert start.files == {
        model_folder.WEIGHTS: canonical_json.sha256((folder / model_folder.WEIGHTS).read_bytes())
    }
    assert start.taint == dict.fromkeys(found.groups, ("unknown",))


def test_weights_of_another_model_are_refused_before_any_data_is_read(here: Deployment) -> None:
    path = save(gpt(1), here.folder / "start.safetensors")
    with pytest.raises(UsageError, match=r"another shape: .* and \d+ more"):
        GovernedTrainer(experiment(here, pretrained=str(path))).train()


def test_a_run_from_existing_weights_is_attested_as_one(
    here: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_here(monkeypatch)
    source = gpt(7, width=32, context=32, vocabulary=257, dropout=0.1)
    path = save(source, tmp_path / "start.safetensors")
    digest = canonical_json.sha256(path.read_bytes())
    tiny_steps = {"lr": 1e-9, "weight_decay": 0.0}  # so the result shows where it began
    trainer = GovernedTrainer(
        experiment(
            here,
            pretrained=str(path),
            optimizer=tiny_steps,
            max_steps=2,
            resources={"num_workers": 1},
        )
    )
    run = Path(str(trainer.train(attest=True)))

    trained = safetensors.torch.load_file(run / "model" / model_folder.WEIGHTS)
    for name, value in source.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-6)
    model = govray.verify(run / "model", trust_root=here.root)
    base = model.attestation.base_groups
    assert model.attestation.run.initial_weights == {"start.safetensors": digest}
    assert model.attestation.pretrained == dict.fromkeys(base, ("unknown",))
    told = ["verify", str(run / "model"), "--trust-root", str(here.root)]
    capsys.readouterr()
    assert main([*told, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["pretrained"] == {group: ["unknown"] for group in base}
    assert all("unknown" in entry["transitive"] for entry in value["taint"])
    assert value["run"]["initialWeights"] == {"start.safetensors": digest}
    assert main(told) == 0
    assert "start.safetensors sha256:" in capsys.readouterr().out

    # A replay begins with the same bytes or not at all.
    save(gpt(8, width=32, context=32, vocabulary=257), path)
    with pytest.raises(Refused, match="changed since the run began"):
        replay(run, without="acme")

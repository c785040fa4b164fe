"""`checkpoint export --dcp`: torch alone loads what it wrote, into one process and into two."""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from govray.engine.model.adapters import ALPHA_PER_RANK
from govray.engine.model.gpt import GPT
from govray.engine.model.layer_groups import layer_groups
from govray.errors import Damaged, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_folder, dcp_folder, whole_file
from govray.train.checkpoint.optimizer_state import optimizer_state
from govray.train.checkpoint.sharded_file import part_name
from govray.train.state.dcp_export import export_dcp
from govray.train.state.pretrained import check_fits, find_weights, load_start, read_start
from govray.train.state.snapshot import folder_name
from govray.train.state.trained_model import OPTIMIZER, OPTIMIZER_VALUES
from tests.support.fork import KILLED, die, in_fork
from tests.support.ranks import RankPool
from tests.support.shared_training import Shared
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "checkpoints.md"
COMMIT = folder_name(2)
AT = datetime(2026, 11, 1, tzinfo=UTC)

Gathered = dict[str, dict[str, Tensor]]


def trained(folder: Path, cut: bool = True) -> Gathered:
    """Two steps, a commit after each; the tensors after the last one."""
    training = Shared(folder, cut=cut)
    for step in (1, 2):
        training.step()
        training.begin(step)
    training.commits.settle(None)
    return training.gathered()


def plain() -> tuple[Any, torch.optim.Optimizer]:
    """What has nothing of govray but the module's code; sharded by torch if there are two ranks."""
    torch.manual_seed(99)
    model = GPT(blocks=2, width=8, context=4, vocabulary=11)
    if dist.get_world_size() > 1:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.5)


def code_of_the_page(word: str) -> str:
    [code] = [
        each for each in re.findall("```python\n(.*?)```", PAGE.read_text(), re.S) if word in each
    ]
    return str(code)


def loaded(folder: Path) -> Gathered:
    """After the code of the page: file → the tensors of model and optimizer, whole."""
    model, optimizer = plain()
    os.chdir(folder)
    exec(code_of_the_page("get_state_dict"), {"model": model, "optimizer": optimizer})
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"]) == (0.1, (0.9, 0.999))
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        model_folder.WEIGHTS: {name: whole(value) for name, value in model.state_dict().items()},
        OPTIMIZER: {
            f"{key}/{names[parameter]}": whole(value)
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        },
    }


def whole(tensor: Tensor) -> Tensor:
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def assert_same(found: Gathered, expected: Gathered) -> None:
    for file in (model_folder.WEIGHTS, OPTIMIZER):
        ours = {name: each for name, each in expected[file].items() if "adapter:" not in name}
        assert found[file].keys() == ours.keys()
        for name, tensor in ours.items():
            assert found[file][name].dtype == tensor.dtype
            assert torch.equal(found[file][name], tensor), name


@pytest.fixture(scope="module")
def commits(
    two_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Gathered]]:
    shared, alone = (tmp_path_factory.mktemp(name) for name in ("shared", "alone"))
    return {
        "shared": (shared / COMMIT, two_ranks.run(trained, shared)[0]),
        "alone": (alone / COMMIT, trained(alone, cut=False)),
    }


@pytest.mark.parametrize("kind", [pytest.param("shared", marks=pytest.mark.story), "alone"])
def test_torch_loads_the_same_bytes_into_one_process_and_two(
    commits: dict[str, tuple[Path, Gathered]],
    one_rank: RankPool,
    two_ranks: RankPool,
    kind: str,
    tmp_path: Path,
) -> None:
    commit, expected = commits[kind]
    done = export_dcp(commit, tmp_path / "tiny-dcp")
    assert done.tensors == {
        "model": len(expected[model_folder.WEIGHTS]),
        "ema": len(expected[model_folder.EMA]),
        "optim": sum("adapter:" not in name for name in expected[OPTIMIZER]),
        "adapters": len(adapter_of(commit)),
    }
    assert done.removed == ()
    assert done.digest == commit_folder.open_commit(commit).digest
    for pool in (one_rank, two_ranks):
        for found in pool.run(loaded, tmp_path):
            assert_same(found, expected)
    average = {name: torch.zeros_like(each) for name, each in expected[model_folder.EMA].items()}
    dcp.load({"ema": average}, checkpoint_id=done.folder, no_dist=True)
    assert all(
        torch.equal(average[name], each) for name, each in expected[model_folder.EMA].items()
    )
    # The control: another commit has other weights.
    export_dcp(commit.parent / folder_name(1), tmp_path / "before" / "tiny-dcp")
    [before] = one_rank.run(loaded, tmp_path / "before")
    with pytest.raises(AssertionError):
        assert_same(before, expected)


def adapter_of(commit: Path) -> dict[str, Tensor]:
    """The adapter's tensors as they were committed."""
    return commit_folder.open_commit(commit).tensors(model_folder.adapter_files("acme")[1])


def adapted(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """After both codes of the page: the tensors of model and adapter, and the adapter's scale."""
    model, optimizer = plain()
    os.chdir(folder)
    exec(code_of_the_page("get_state_dict"), {"model": model, "optimizer": optimizer})
    config: Any = {"r": 0, "lora_alpha": 0, "target_modules": []}
    dcp.load({"adapter_configs": {"acme": config}}, checkpoint_id="tiny-dcp")
    with_peft = peft.get_peft_model(model, peft.LoraConfig(**config))
    exec(code_of_the_page("get_peft_model_state_dict"), {"adapted": with_peft})
    factors = peft.get_peft_model_state_dict(with_peft)
    scale = config["lora_alpha"] / config["r"]
    return with_peft.unload().state_dict(), {n: t.clone() for n, t in factors.items()}, scale


def test_torch_loads_an_adapter_beside_the_base(
    commits: dict[str, tuple[Path, Gathered]], one_rank: RankPool, tmp_path: Path
) -> None:
    commit, expected = commits["shared"]
    export_dcp(commit, tmp_path / "tiny-dcp")
    [(base, factors, scale)] = one_rank.run(adapted, tmp_path)
    assert scale == ALPHA_PER_RANK
    committed = adapter_of(commit)
    assert factors.keys() == committed.keys()
    assert all(torch.equal(factors[name], each) for name, each in committed.items())
    assert all(torch.equal(base[name], t) for name, t in expected[model_folder.WEIGHTS].items())
    # The control: the commit before has another adapter.
    earlier = adapter_of(commit.parent / folder_name(1))
    assert not all(torch.equal(factors[name], each) for name, each in earlier.items())


def test_an_adapter_that_was_removed_is_not_exported(
    commits: dict[str, tuple[Path, Gathered]], tmp_path: Path
) -> None:
    commit = shutil.copytree(commits["alone"][0], tmp_path / "run" / COMMIT)
    model = tmp_path / "run" / "model"
    for name in (model_folder.ATTESTATION, *model_folder.adapter_files("acme")):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).touch()
    done = export_dcp(commit, tmp_path / "before")
    assert (done.removed, "adapters" in done.tensors) == ((), True)
    shutil.rmtree(model / model_folder.ADAPTERS)  # as `govray adapter remove` leaves it
    done = export_dcp(commit, tmp_path / "after")
    assert (done.removed, "adapters" in done.tensors) == (("acme",), False)
    for out, there in (("before", True), ("after", False)):
        names = dcp.FileSystemReader(tmp_path / out).read_metadata().state_dict_metadata
        assert any("acme" in name for name in names) == there
        assert any(name.startswith("model.") for name in names)


def test_it_holds_a_file_and_a_tensor_or_two_at_a_time(
    commits: dict[str, tuple[Path, Gathered]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, expected = commits["alone"]
    held = most = 0
    fill = dcp_folder._filled

    def counted(file: Any, piece: Any) -> Tensor:
        nonlocal held, most
        tensor = fill(file, piece)
        held += tensor.nbytes
        most = max(most, held)

        def gone(size: int = tensor.nbytes) -> None:
            nonlocal held
            held -= size

        weakref.finalize(tensor.untyped_storage(), gone)
        return tensor

    monkeypatch.setattr(dcp_folder, "_filled", counted)
    sizes = [each.nbytes for file in expected.values() for each in file.values()]
    monkeypatch.setattr(dcp_folder, "FILE_BYTES", 2000)
    export_dcp(commit, tmp_path / "small")
    assert most <= 2000 + 2 * max(sizes)
    # The control: in one file they would all be held.
    monkeypatch.setattr(dcp_folder, "FILE_BYTES", 1 << 30)
    export_dcp(commit, tmp_path / "large")
    assert most > sum(sizes) / 2 > 2000 + 2 * max(sizes)


def _flipped(commit: Path, file: str) -> Callable[[], None]:
    path = commit / file
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return lambda: void(path.write_bytes(data))


def void(_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("shared", part_name(model_folder.WEIGHTS, 1, 2)),
        ("shared", part_name(OPTIMIZER, 1, 2)),
        ("alone", model_folder.WEIGHTS),
        ("alone", "ledger.jsonl"),
    ],
)
def test_a_commit_that_was_changed_is_refused(
    commits: dict[str, tuple[Path, Gathered]],
    kind: str,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit, _ = commits[kind]
    restore = _flipped(commit, file)
    try:
        with pytest.raises(Damaged, match="differs from its digest"):
            export_dcp(commit, tmp_path / "out")
        assert not list(tmp_path.iterdir())
        # What changes after it was verified is found where it is written.
        if file != "ledger.jsonl":
            monkeypatch.setattr(dcp_folder, "require_intact", void)
            with pytest.raises(Damaged, match="differs from its digest"):
                export_dcp(commit, tmp_path / "out")
            assert not list(tmp_path.iterdir())
            # The control: without digests it would be exported.
            monkeypatch.setattr(whole_file.HashedFile, "require_intact", void)
            export_dcp(commit, tmp_path / "out")
    finally:
        restore()


def test_it_refuses_a_folder_that_is_there_and_a_commit_that_is_not(
    commits: dict[str, tuple[Path, Gathered]], tmp_path: Path
) -> None:
    commit, _ = commits["shared"]
    with pytest.raises(UsageError, match="already exists"):
        export_dcp(commit, tmp_path)
    with pytest.raises(UsageError, match="no such checkpoint"):
        export_dcp(commit.with_name(folder_name(8)), tmp_path / "out")
    with pytest.raises(Damaged, match="never committed"):
        export_dcp(commit.parent, tmp_path / "out")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UsageError, match="cannot be written"):
        export_dcp(commit, tmp_path / "file" / "out")


@pytest.mark.parametrize("late", [False, True])
def test_a_kill_leaves_nothing_that_loads(
    commits: dict[str, tuple[Path, Gathered]], late: bool, tmp_path: Path
) -> None:
    commit, expected = commits["shared"]

    def exports() -> None:
        if late:
            dcp_folder.FileSystemWriter.finish = die
        else:
            fill, calls = dcp_folder._filled, iter(range(99))
            dcp_folder._filled = lambda *args: die() if next(calls) == 20 else fill(*args)
        export_dcp(commit, tmp_path / "tiny-dcp")

    assert in_fork(exports) == KILLED
    [left] = tmp_path.iterdir()
    assert re.fullmatch(r"\.tiny-dcp\..*\.partial", left.name)
    assert any(left.iterdir())
    weights = {name: each.clone() for name, each in expected[model_folder.WEIGHTS].items()}
    with pytest.raises(dcp.CheckpointException, match=r"\.metadata"):
        dcp.load({"model": weights}, checkpoint_id=left, no_dist=True)
    export_dcp(commit, tmp_path / "tiny-dcp")
    assert [each.name for each in tmp_path.iterdir()] == ["tiny-dcp"], "the next one clears up"
    dcp.load({"model": weights}, checkpoint_id=tmp_path / "tiny-dcp", no_dist=True)


def test_what_no_step_has_moved_has_no_state(tmp_path: Path) -> None:
    halves = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(*halves)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        halves[0](torch.ones(1, 2)).sum().backward()
        optimizer.step()
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors, values = optimizer_state(optimizer, names)
    files = {model_folder.WEIGHTS: model.state_dict(), OPTIMIZER: tensors}
    commit = tmp_path / COMMIT
    commit_folder.commit(commit, {**files, OPTIMIZER_VALUES: canonical_json.encode(values)})
    export_dcp(commit, tmp_path / "out")
    fresh = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    weights, moments = get_state_dict(fresh, torch.optim.AdamW(fresh.parameters()))
    into: Any = {"model": weights, "optim": moments}
    with pytest.raises(dcp.CheckpointException, match=r"optim\.state\.1\.weight\.step"):
        dcp.load(into, checkpoint_id=tmp_path / "out", no_dist=True)
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(into, checkpoint_id=tmp_path / "out", no_dist=True, planner=planner)
    assert [into["optim"]["state"][f"{half}.weight"]["step"] for half in (0, 1)] == [3, 1]
    assert all(torch.equal(weights[name], each) for name, each in model.state_dict().items())


# The other direction, and torch without a pickle.


def saved_by_torch(folder: Path) -> dict[str, Tensor]:
    model, _ = plain()
    weights = get_model_state_dict(model)
    os.chdir(folder)
    exec(code_of_the_page("HuggingFaceStorageWriter"), {"weights": weights})
    return {name: whole(value) for name, value in weights.items()}


def test_what_torch_saves_as_safetensors_is_a_pretrained_start(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    expected = two_ranks.run(saved_by_torch, tmp_path)[0]
    model = GPT(blocks=2, width=8, context=4, vocabulary=11)
    start = read_start(
        find_weights(tmp_path / "saved"), layer_groups(model), trust_root=b"{}", at=AT
    )
    check_fits(model, start)
    assert not torch.equal(model.head.weight, expected["head.weight"])
    load_start(model, start)
    assert all(torch.equal(each, expected[name]) for name, each in model.state_dict().items())


def test_torch_reads_the_weights_of_a_model_folder_without_a_pickle(
    commits: dict[str, tuple[Path, Gathered]], tmp_path: Path
) -> None:
    commit, gathered = commits["alone"]
    shutil.copy(commit / model_folder.WEIGHTS, tmp_path)
    expected = gathered[model_folder.WEIGHTS]
    weights = {name: torch.zeros_like(each) for name, each in expected.items()}
    dcp.load(weights, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert all(torch.equal(weights[name], each) for name, each in expected.items())

"""Optimizer state without pickle: byte-exact on resuming, refused for another optimizer."""

import pytest
import torch
from torch import nn

from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.rng_state import generators
from govray.errors import Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.train.checkpoint.commit_folder import commit, load
from govray.train.checkpoint.optimizer_state import (
    begin_optimizer,
    optimizer_state,
    restore_optimizer,
)
from govray.train.checkpoint.stored_tensors import contents, tensors_of


def build(kind=torch.optim.AdamW, **options):
    torch.manual_seed(11)
    model = GPT(2, 32, 8, 11, dropout=0.1)
    adapters = Adapters(model, {"notes": 2}, seed=1)
    names = {parameter: name for name, parameter in model.named_parameters()}
    base, head = list(names)[:-1], list(names)[-1:]
    extra = {parameter: name for name, parameter in adapters.named_parameters()}
    groups = [{"params": base}, {"params": head, "weight_decay": 0.0}, {"params": list(extra)}]
    return model, kind(groups, **options), names | extra


def train(model, optimizer, steps):
    """With dropout from the global generator, so that its state matters too."""
    for _ in range(steps):
        tokens = torch.randint(0, 11, (3, 9))
        optimizer.zero_grad(set_to_none=True)
        loss(model, {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}).mean().backward()
        optimizer.step()


def save(folder, model, optimizer, names):
    tensors, state = optimizer_state(optimizer, names)
    commit(
        folder,
        contents(
            {
                "model": model.state_dict(),
                "optimizer": tensors,
                "optimizer.json": canonical_json.encode(state),
                "rng": generators().tensors,
            }
        ),
    )


def resume(folder, model, optimizer, names):
    loaded = load(folder)
    model.load_state_dict(tensors_of(loaded, "model"))
    state = canonical_json.parse(loaded.files["optimizer.json"])
    restore_optimizer(optimizer, names, tensors_of(loaded, "optimizer"), state)
    torch.set_rng_state(tensors_of(loaded, "rng")["torch"])


OPTIMIZERS = [
    (torch.optim.AdamW, {"lr": 1.0, "weight_decay": 0.1, "betas": (0.9, 0.95)}),
    (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
    (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 1e-1}),
    (torch.optim.SGD, {"lr": 1e-1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.NAdam, {"lr": 1e-2}),
    (torch.optim.Adagrad, {"lr": 1e-2}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_resuming_is_byte_exact(tmp_path, kind, options):
    straight, optimizer, names = build(kind, **options)
    train(straight, optimizer, 6)
    save(tmp_path / "straight", straight, optimizer, names)

    first, optimizer, names = build(kind, **options)
    train(first, optimizer, 3)
    save(tmp_path / "half", first, optimizer, names)

    second, optimizer, names = build(kind, **options | {"lr": 0.5})
    resume(tmp_path / "half", second, optimizer, names)
    assert optimizer.param_groups[0]["lr"] == options["lr"]
    train(second, optimizer, 3)
    # Weights, optimizer state, hyperparameters and generator, in one digest.
    save(tmp_path / "resumed", second, optimizer, names)
    assert load(tmp_path / "resumed").digest == load(tmp_path / "straight").digest
    # The control: the steps did move the weights.
    assert load(tmp_path / "half").digest != load(tmp_path / "straight").digest


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_another_run_goes_on_as_the_first_would_at_its_learning_rate(kind, options):
    straight, optimizer, names = build(kind, **options)
    train(straight, optimizer, 3)
    tensors, state = optimizer_state(optimizer, names)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    second, fresh, others = build(kind, **options | {"lr": 2e-3})
    second.load_state_dict(straight.state_dict())
    [*base, adapters] = fresh.param_groups
    fresh.param_groups[:] = base  # as before adapters join
    own = dict(list(others.items())[: -len(adapters["params"])])
    begin_optimizer(fresh, own, tensors, state)
    for group in optimizer.param_groups:
        group["lr"] = 2e-3
    drawn = torch.get_rng_state()
    train(straight, optimizer, 3)
    torch.set_rng_state(drawn)
    train(second, fresh, 3)
    for one, other in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("kind", "then", "now"),
    [
        (torch.optim.AdamW, {}, {"amsgrad": True}),
        (torch.optim.RMSprop, {}, {"momentum": 0.9}),
        (torch.optim.AdamW, {"eps": 1e-6}, {}),
    ],
)
def test_moments_of_another_setting_are_refused_by_its_name(kind, then, now):
    model, optimizer, names = build(kind, **then)
    train(model, optimizer, 1)
    stored = optimizer_state(optimizer, names)
    _, fresh, others = build(kind, **now)
    with pytest.raises(Malformed, match=f"{next(iter(then | now))} was .*, and is .* here"):
        begin_optimizer(fresh, others, *stored)
    assert not fresh.state


@pytest.mark.parametrize("part", ["model", "optimizer", "rng"])
def test_each_part_is_needed_for_that(tmp_path, part):
    """The control: leave one part fresh, and the result differs."""
    straight, optimizer, names = build(lr=1e-2)
    train(straight, optimizer, 3)
    save(tmp_path / "half", straight, optimizer, names)
    train(straight, optimizer, 3)

    model, optimizer, names = build(lr=1e-2)
    fresh = {"model": dict(model.state_dict()), "rng": torch.get_rng_state()}
    fresh["model"] = {name: tensor.clone() for name, tensor in fresh["model"].items()}
    resume(tmp_path / "half", model, optimizer, names)
    if part == "model":
        model.load_state_dict(fresh["model"])
    elif part == "optimizer":
        optimizer.state.clear()
    else:
        torch.set_rng_state(fresh["rng"])
    train(model, optimizer, 3)
    assert not torch.equal(model.head.weight, straight.head.weight)


def test_a_parameter_never_stepped_has_no_state_before_or_after():
    model, optimizer, names = build(lr=1e-2)
    train(model, optimizer, 1)
    tensors, state = optimizer_state(optimizer, names)
    assert not [name for name in tensors if "/adapter:notes/" in name]
    _, fresh, fresh_names = build(lr=1e-2)
    restore_optimizer(fresh, fresh_names, tensors, state)
    stepped = {fresh_names[parameter] for parameter in fresh.state}
    assert stepped == {name for name in names.values() if not name.startswith("adapter:")}


def drop_group(tensors, state):
    state["groups"].pop()


def swap(tensors, state):
    state["groups"][0]["parameters"].reverse()


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (drop_group, "over 16 parameters, which is not this AdamW over 32"),
        (swap, "Build the optimizer over the same parameters, groups and order"),
        (lambda tensors, state: state.update(kind="SGD"), "stored for SGD"),
        (lambda tensors, state: state.pop("values"), "not a stored optimizer state"),
        (lambda tensors, state: state.update(groups=3), "not a stored optimizer state"),
        (lambda tensors, state: state["values"].update(ghost={"a": 1}), "ghost is no parameter"),
        (
            lambda tensors, state: tensors.update({"exp_avg/ghost": torch.zeros(1)}),
            "exp_avg/ghost belongs to no parameter",
        ),
        (
            lambda tensors, state: state["groups"][0]["hyperparameters"].update(params=[]),
            "params is no hyperparameter",
        ),
    ],
)
def test_state_of_another_optimizer_is_refused_and_changes_nothing(mutate, message):
    model, optimizer, names = build(lr=1e-2)
    train(model, optimizer, 1)
    tensors, state = optimizer_state(optimizer, names)
    state = canonical_json.parse(canonical_json.encode(state))
    mutate(tensors, state)
    _, fresh, fresh_names = build(lr=0.1)
    with pytest.raises(Malformed, match=message):
        restore_optimizer(fresh, fresh_names, tensors, state)
    assert not fresh.state
    assert fresh.param_groups[0]["lr"] == 0.1


def test_what_cannot_be_stored_is_named():
    parameter = nn.Parameter(torch.zeros(2))
    stray = torch.optim.SGD([parameter], lr=0.1)
    with pytest.raises(UsageError, match=r"param group 0: a parameter of shape \(2,\) has no name"):
        optimizer_state(stray, {})
    tensor_rate = torch.optim.AdamW([parameter], lr=torch.tensor(0.1))
    with pytest.raises(UsageError, match="param group 0, lr: a Tensor in the optimizer"):
        optimizer_state(tensor_rate, {parameter: "p"})
    stray.state[parameter]["odd"] = float("nan")
    with pytest.raises(UsageError, match="p, odd: a float in the optimizer"):
        optimizer_state(stray, {parameter: "p"})

"""The staircase gives each stream's own gradients, or is not used."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from govray.engine.gradients import pass_check
from govray.engine.gradients import staircase as staircase_module
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.governance.policy.route import Route
from tests.support.cases import governed, micro_batch, step_batch, token_rows

BLOCKS, WIDTH, CONTEXT, VOCABULARY = 4, 16, 6, 19


def suffix(model: nn.Module, place: int, weight: float = 1.0) -> Route:
    """The route that permits group ``place`` and all above it."""
    return Route(dict.fromkeys(list(layer_groups(model))[place:], weight))


def gradients(
    model: nn.Module,
    routes: list[Route],
    counts: list[int],
    *,
    joined: bool = True,
    steps: int = 1,
    **settings: object,
) -> tuple[dict[str, Tensor], str | None, int]:
    """The last step's gradients; why there was no staircase; and how often rows joined."""
    seen: dict[str, Tensor] = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(
        lambda *_: seen.update({n: p.grad.clone() for n, p in model.named_parameters()})
    )
    run = governed(model, optimizer, routes, **settings)
    run.accumulation.planner.without("sliced", "of staircases only")
    if not joined:
        run.accumulation.planner.without("staircase", "asked for")
    joins = 0
    cat = staircase_module._Climb._cat

    def counting(self, place, *rest):
        nonlocal joins
        joins += len(place) == 1
        return cat(self, place, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staircase_module._Climb, "_cat", counting)
        for step in range(steps):
            run(
                step_batch(
                    step,
                    [
                        micro_batch(route, token_rows(count, CONTEXT, VOCABULARY, step, index))
                        for index, (route, count) in enumerate(zip(routes, counts, strict=True))
                        if count
                    ],
                ),
                loss,
            )
    return seen, run.accumulation.planner.reasons.get("staircase"), joins


def fresh(kind: type[nn.Module] = GPT, **options: object) -> nn.Module:
    torch.manual_seed(3)
    model = kind(BLOCKS, WIDTH, CONTEXT, VOCABULARY, heads=2, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def assert_equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).norm() <= 1e-12 * gradient.norm(), name


@pytest.mark.parametrize("max_rows", [None, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_it_gives_the_gradients_of_each_stream_alone(dropout: float, max_rows: int | None) -> None:
    results = []
    for joined in (True, False):
        model = fresh(dropout=dropout)
        routes = [suffix(model, 0), suffix(model, 3), suffix(model, 4, 0.5), suffix(model, 2)]
        results.append(
            gradients(model, routes, [3, 2, 4, 1], joined=joined, max_rows=max_rows, steps=2)
        )
    (ours, reason, joins), (theirs, asked, none) = results
    assert (reason, asked) == (None, "asked for")
    assert joins > 0
    assert none == 0
    assert_equal(ours, theirs)


def test_a_weight_is_not_lost() -> None:
    """What the comparison above would miss if both ways ignored weights."""
    model = fresh()
    full, _, _ = gradients(model, [suffix(model, 0), suffix(model, 4, 1.0)], [1, 2])
    model = fresh()
    half, _, _ = gradients(model, [suffix(model, 0), suffix(model, 4, 0.5)], [1, 2])
    assert (full["head.weight"] - half["head.weight"]).norm() > 1e-3


class Checkpointed(GPT):
    """Recomputes every block in backward."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return self.head(self.final_norm(hidden))


class Masked(GPT):
    """Gives its blocks a mask of shape (tokens, tokens), as many as there may be rows."""

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.float64).tril()
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(mask @ hidden)
        return self.head(self.final_norm(hidden))


def with_mask(block: nn.Module) -> nn.Module:
    forward = block.forward
    block.forward = lambda hidden, mask=None: forward(hidden if mask is None else mask @ hidden)
    return block


class MaskArgument(Masked):
    """Passes the mask on as an argument."""

    def __init__(self, *args: int, **options: int) -> None:
        super().__init__(*args, **options)
        for block in self.blocks:
            with_mask(block)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.float64).tril()
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, mask=mask)
        return self.head(self.final_norm(hidden))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Checkpointed, Masked, MaskArgument])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_it_serves_other_forwards(kind: type[nn.Module], dropout: float) -> None:
    results = []
    for joined in (True, False):
        model = fresh(kind, dropout=dropout)
        routes = [suffix(model, 0), suffix(model, 3)]
        # As many rows as there are tokens, in all and on each side of the entry.
        for counts in ([CONTEXT, CONTEXT], [CONTEXT // 2, CONTEXT // 2]):
            results.append(gradients(model, routes, counts, joined=joined))
    for (ours, reason, joins), (theirs, _, _) in zip(results[:2], results[2:], strict=True):
        assert reason is None
        assert joins > 0
        assert_equal(ours, theirs)


class Shared(GPT):
    """Blocks read something that was computed below the entry, with a gradient."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        bias = self.embedding.positions.weight.mean(0)
        for block in self.blocks:
            hidden = block(hidden + bias)
        return self.head(self.final_norm(hidden))


class SharedArgument(MaskArgument):
    """The same, handed over as an argument."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        mask = (
            torch.eye(tokens.shape[1], dtype=hidden.dtype) * self.embedding.positions.weight.mean()
        )
        for block in self.blocks:
            hidden = block(hidden, mask=mask)
        return self.head(self.final_norm(hidden))


class Mixing(GPT):
    """Rows are reshaped by a number taken at the start."""

    def forward(self, tokens: Tensor) -> Tensor:
        rows = tokens.shape[0]
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.final_norm(hidden)).view(rows, *tokens.shape[1:], -1)


class Skipping(GPT):
    """Calls what is in a block, not the block."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block.forward(hidden)
        return self.head(self.final_norm(hidden))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Shared, "would update embedding"),
        (SharedArgument, "carries a gradient between rows"),
        (Mixing, "ValueError"),
        (Skipping, "was not called by the model's forward"),
    ],
)
def test_a_model_that_does_not_lend_itself_is_routed_stream_by_stream(
    kind: type[nn.Module], why: str
) -> None:
    model = fresh(kind)
    routes = [suffix(model, 0), suffix(model, 3)]
    ours, reason, _ = gradients(model, routes, [3, 2])
    assert reason is not None
    assert why in reason
    model = fresh(kind)
    theirs, _, _ = gradients(model, routes, [3, 2], joined=False)
    assert_equal(ours, theirs)


def test_without_the_trial_a_shared_tensor_would_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same model, with the trial switched off."""
    try_pass = pass_check.try_pass

    def lenient(*arguments: object) -> pass_check.PassCheck:
        try_pass(*arguments)  # it still learns the places
        return pass_check.PassCheck(True)

    monkeypatch.setattr(pass_check, "try_pass", lenient)
    model = fresh(Shared)
    routes = [suffix(model, 0), suffix(model, 3)]
    ours, reason, _ = gradients(model, routes, [3, 2])
    assert reason is None
    theirs, _, _ = gradients(fresh(Shared), routes, [3, 2], joined=False)
    leak = ours["embedding.positions.weight"] - theirs["embedding.positions.weight"]
    assert leak.norm() > 1e-3 * theirs["embedding.positions.weight"].norm()


def test_a_head_of_zeros_leaves_the_trial_open_until_there_is_something_to_see() -> None:
    model = fresh()
    torch.nn.init.zeros_(model.head.weight)
    routes = [suffix(model, 0), suffix(model, 3)]
    _, reason, joins = gradients(model, routes, [3, 2], steps=3)
    assert reason is None
    assert joins > 0


def test_a_loss_that_never_calls_the_model_has_no_staircase() -> None:
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    routes = [suffix(model, 0), suffix(model, 3)]
    run = governed(model, optimizer, routes)

    def by_hand(model: GPT, tensors: Mapping[str, Tensor]) -> Tensor:
        hidden = model.embedding(tensors["tokens"])
        for block in model.blocks:
            hidden = block(hidden)
        logits = model.head(model.final_norm(hidden))
        return nn.functional.cross_entropy(
            logits.transpose(1, 2), tensors["targets"], reduction="none"
        )

    batch = step_batch(
        0, [micro_batch(r, token_rows(2, CONTEXT, VOCABULARY, i)) for i, r in enumerate(routes)]
    )
    run(batch, by_hand)
    assert "without the model's own forward" in (
        run.accumulation.planner.reasons.get("staircase") or ""
    )


def hugging_face(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 2,
    }
    if kind == "gpt2":
        config = transformers.GPT2Config(
            **sizes,
            n_positions=8,
            tie_word_embeddings=False,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            **dict.fromkeys(("bos_token_id", "eos_token_id")),
        )
    else:
        config = transformers.AutoConfig.for_model(
            kind, **sizes, intermediate_size=32, num_key_value_heads=1, head_dim=8
        )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).train()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3", "mistral"])
def test_causal_lms_of_transformers_lend_themselves(kind: str, checkpointing: bool) -> None:
    """With their own masks, rotary tables, caches and checkpointing layers."""
    model = hugging_face(kind)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    routes = [suffix(model, 0), suffix(model, 3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = governed(model, optimizer, routes)

    def unreduced(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        logits = model(tensors["tokens"]).logits
        return nn.functional.cross_entropy(
            logits.transpose(1, 2), tensors["targets"], reduction="none"
        )

    rows = [token_rows(3, CONTEXT, VOCABULARY, index) for index in (0, 1)]
    batch = [micro_batch(route, tensors) for route, tensors in zip(routes, rows, strict=True)]
    run(step_batch(0, batch), unreduced)
    assert run.accumulation.planner.reasons.get("staircase") is None

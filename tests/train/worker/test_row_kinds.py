"""Rows of conversations and of images: what the engine gets, and that it trains exactly on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from govray.data import shard_file
from govray.data.rows import chat, tensor_record
from govray.data.rows.chat import ChatTokenizer
from govray.data.step_reader import StepRows
from govray.data.tokenizer import ByteTokenizer
from govray.engine.batch import IGNORED, StepBatch
from govray.engine.gpt import GPT
from govray.engine.gpt import loss as token_loss
from govray.engine.vit import VisionTransformer
from govray.engine.vit import loss as image_loss
from govray.governance.formats.row_schema import CHAT, MASKED, RowSchema, image_schema
from govray.train.worker.planned_batch import step_batch
from tests.support.cases import CORPUS, allow_all, governed

CONTEXT, STEPS, CLIP = 24, 12, 0.5
TOKENIZER = ChatTokenizer(ByteTokenizer())
IMAGES = image_schema((1, 4, 4), 3)

LONG = [{"role": "user", "content": "x" * 4 * CONTEXT}]


def conversation(key: int) -> bytes:
    draw = np.random.default_rng(key)
    turns = [
        {"role": role, "content": draw.bytes(int(draw.integers(0, 9))).hex()}
        for _ in range(int(draw.integers(1, 3)))
        for role in ("user", "assistant")
    ]
    return chat.encode(LONG if key % 5 == 4 else turns)


def step_rows(step: int, words: np.ndarray, lengths: np.ndarray) -> StepRows:
    count, stream = len(lengths), allow_all(fresh_chat()).digest
    return StepRows(step, words, lengths, (stream,) * count, np.arange(count), (CORPUS,) * count)


def chat_rows(step: int, rank: int) -> StepRows:
    """Packed conversations; in step 3 nobody has a loss target, and none has a rank in others."""
    contents = (
        [chat.encode(LONG)] if step == 3 else [conversation(7 * step + rank + k) for k in (0, 1)]
    )
    separator = TOKENIZER.separator | MASKED
    stream = np.concatenate([np.append(TOKENIZER.encode(each), separator) for each in contents])
    rows = shard_file.cut(stream.astype(np.uint32), CONTEXT)
    matrix = np.zeros((len(rows.lengths), CONTEXT + 1), np.uint32)
    matrix[:, : rows.matrix.shape[1]] = rows.matrix
    return step_rows(step, matrix, rows.lengths)


def image_rows(step: int, rank: int) -> StepRows:
    draw = np.random.default_rng((step, rank))
    count = (step + 2 * rank) % 4
    records = [
        tensor_record.encode(
            IMAGES,
            {
                "image": draw.integers(0, 256, (1, 4, 4), np.uint8),
                "targets": np.array(draw.integers(3), np.int64),
            },
        )
        for _ in range(count)
    ]
    words = [tensor_record.row(IMAGES, each) for each in records]
    matrix = np.array(words, np.uint32).reshape(count, IMAGES.words)
    return step_rows(step, matrix, np.full(count, IMAGES.words))


def fresh_chat() -> nn.Module:
    torch.manual_seed(7)
    return GPT(1, 16, CONTEXT, TOKENIZER.vocabulary)


def fresh_vit() -> nn.Module:
    torch.manual_seed(7)
    return VisionTransformer([1, 4, 4], 3, 2, 1, 16)


class Kind:
    """What tests of one kind of rows need."""

    rows: Mapping[str, Callable[[int, int], StepRows]] = {"chat": chat_rows, "images": image_rows}
    model: Mapping[str, Callable[[], nn.Module]] = {"chat": fresh_chat, "images": fresh_vit}
    loss: Mapping[str, Callable[..., Tensor]] = {"chat": token_loss, "images": image_loss}
    schema: Mapping[str, RowSchema] = {"chat": CHAT, "images": IMAGES}


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def batches(kind: str) -> Iterator[StepBatch]:
    """This rank's, of one route stream."""
    for step in range(STEPS):
        yield step_batch(Kind.rows[kind](step, rank()), "cpu", Kind.schema[kind])


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def plain(kind: str) -> dict[str, Tensor]:
    """Plain training with torch alone: sum, all-reduce, divide by what has a target, clip, step."""
    model = Kind.model[kind]()
    optimizer = optimizer_of(model)
    for batch in batches(kind):
        optimizer.zero_grad()
        count = torch.tensor(0)
        for each in batch.micro_batches:
            counted = each.tensors["targets"] != IGNORED
            count += counted.sum()
            if counted.any():
                Kind.loss[kind](model, each.tensors).sum().backward()
        if dist.is_initialized():
            dist.all_reduce(count)
        if not count:
            continue
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if dist.is_initialized():
                dist.all_reduce(parameter.grad)
            parameter.grad /= count
        clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return weights_of(model)


def ours(kind: str, norms_every: int = 0) -> dict[str, Tensor]:
    model = Kind.model[kind]()
    optimizer = optimizer_of(model)
    more = {"norms_every": norms_every} if norms_every else {}
    run = governed(
        model, optimizer, [allow_all(model)], clip_norm=CLIP,
        layout=lambda parameters: [[name] for name in parameters], **more,
    )  # fmt: skip
    # Both models' groups have one name each, so rows of both have the stream of either route.
    route = allow_all(model).digest
    for batch in batches(kind):
        moved = [
            type(each)(route, each.tensors, each.positions, each.row_targets, each.corpora)
            for each in batch.micro_batches
        ]
        run(StepBatch(batch.step, tuple(moved), batch.corpora), Kind.loss[kind])
    return weights_of(model)


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> set[str]:
    assert a.keys() == b.keys()
    return {name for name in a if not torch.equal(a[name], b[name])}


@pytest.mark.parametrize("kind", Kind.rows)
def test_allow_all_is_plain_training_bit_for_bit(kind: str) -> None:
    reference = plain(kind)
    assert differing(ours(kind), reference) == set()
    assert differing(reference, weights_of(Kind.model[kind]())) == set(reference)


@pytest.mark.parametrize("kind", Kind.rows)
def test_sampling_gradient_norms_changes_nothing(kind: str) -> None:
    assert differing(ours(kind, norms_every=1), ours(kind)) == set()


def gradient(rows: StepRows, tensors: Mapping[str, Tensor]) -> Tensor:
    """Of each input position's embedding, its absolute sum, by the loss of one batch."""
    model = fresh_chat()
    found: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        found.append(output)

    model.head.register_forward_hook(keep)
    token_loss(model, tensors).sum().backward()
    return found[0].grad.abs().sum(dim=-1)


def test_no_gradient_comes_from_a_masked_prediction() -> None:
    rows = chat_rows(0, 0)
    [batch] = step_batch(rows, "cpu", CHAT).micro_batches
    masked = torch.from_numpy(rows.tokens[:, 1:].astype(np.int64)) >= MASKED
    assert 0 < masked.sum() < masked.numel()
    seen = gradient(rows, batch.tensors)
    assert seen[masked].max() == 0
    assert seen[batch.tensors["targets"] != IGNORED].min() > 0
    # Without the mask there is one: the test sees what it looks for.
    bare = unmasked(0, 0)
    [batch] = step_batch(bare, "cpu", CHAT).micro_batches
    assert gradient(bare, batch.tensors)[masked].max() > 0


def unmasked(step: int, rank: int) -> StepRows:
    """The same rows, as if each token were a loss target."""
    rows = chat_rows(step, rank)
    return StepRows(**{**vars(rows), "tokens": rows.tokens & (MASKED - 1)})


def test_dropping_the_mask_changes_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = ours("chat")
    monkeypatch.setattr(Kind, "rows", {"chat": unmasked})
    assert differing(ours("chat"), reference)
    assert differing(plain("chat"), reference)


def test_a_step_without_any_loss_target_counts_its_rows_and_moves_nothing() -> None:
    batch = step_batch(chat_rows(3, 0), "cpu", CHAT)
    assert batch.corpora[CORPUS][0] > 0
    assert batch.corpora[CORPUS][1] == 0
    model = fresh_chat()
    run = governed(model, optimizer_of(model), [allow_all(model)], norms_every=1)
    result = run(batch, token_loss)
    assert result.corpus_counts[CORPUS] == batch.corpora[CORPUS]
    assert differing(weights_of(model), weights_of(fresh_chat())) == set()

"""Keyed dropout: a row's mask follows the row, wherever and beside whatever it is read."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from govray.engine.model import keyed_dropout
from govray.engine.model.keyed_dropout import kept, key_dropout, outputs, signed
from govray.engine.steps.keyed_seed import mask_seed
from govray.errors import UsageError
from tests.support.table import each_row

ONES = torch.ones(64, 32)

PINNED = [
    "33d1bfff5ff7fdfd",
    "f725d5fbfebbafd7",
    "ff0bfcef6bfebf71",
    "67b7debccf77d7db",
]
"""The first 64 elements of two rows in two layers, as bits."""


class Net(nn.Module):
    """Two dropouts in a row, so that the layer's FQN matters."""

    def __init__(self, p=0.5):
        super().__init__()
        self.first = nn.Dropout(p)
        self.rest = nn.Sequential(nn.Identity(), nn.Dropout(p))

    def forward(self, inputs):
        return self.first(inputs), self.rest(inputs)


def masks(keyed, net, positions, *, stream="s", step=0):
    with keyed.rows(step, [(stream, position) for position in positions]):
        first, rest = net(torch.ones(len(positions), 256))
    return first > 0, rest > 0


@given(
    rows=st.lists(st.integers(0, 10_000), min_size=1, max_size=8, unique=True),
    shuffle=st.randoms(),
    cut=st.integers(0, 8),
)
@settings(max_examples=60)
def test_a_mask_follows_its_row_through_any_split_and_order(rows, shuffle, cut):
    net = Net()
    keyed = key_dropout(net, seed=5)
    together, _ = masks(keyed, net, rows)
    by_row = dict(zip(rows, together, strict=True))
    order = list(rows)
    shuffle.shuffle(order)
    for part in (order[:cut], order[cut:]):
        if part:
            for row, mask in zip(part, masks(keyed, net, part)[0], strict=True):
                assert torch.equal(mask, by_row[row])


def test_every_part_of_the_key_matters():
    net = Net()
    keyed = key_dropout(net, seed=5)
    first, rest = masks(keyed, net, [3, 4])
    different = [
        first[1],
        rest[0],
        masks(keyed, net, [3], stream="t")[0][0],
        masks(keyed, net, [3], step=1)[0][0],
    ]
    other = Net()
    different.append(masks(key_dropout(other, seed=6), other, [3])[0][0])
    assert not any(torch.equal(first[0], mask) for mask in different)
    assert torch.equal(first[0], masks(keyed, net, [3])[0][0])


def test_the_key_is_pinned():
    """A golden value: a replay must draw the recorded run's masks."""
    assert mask_seed(17, "stream", 3, 0, "blocks.0.mlp.dropout") == 0x0B13904D3BEBBED6


def test_a_mask_is_pinned():
    """Golden: what this generator drops of two rows, from one release to the next."""
    net = Net(0.25)
    keyed = key_dropout(net, seed=17)
    first, rest = masks(keyed, net, [0, 7], stream="stream", step=3)
    packed = [
        f"{int(''.join(str(int(kept)) for kept in row[:64]), 2):016x}"
        for row in (*first.tolist(), *rest.tolist())
    ]
    assert packed == PINNED


@each_row("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_has_the_same_mask_and_a_scale_rounded_once(dtype):
    net = nn.Sequential(nn.Dropout(0.1))
    inputs = torch.linspace(0.5, 4, 4 * 64, dtype=torch.float64).view(4, 64).to(dtype)
    with key_dropout(net, seed=5).rows(0, [("s", row) for row in range(4)]):
        expected = net(inputs.double())
        outputs = net(inputs)
    assert outputs.dtype == dtype
    assert torch.equal(outputs != 0, expected != 0)
    torch.testing.assert_close(outputs.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)


def test_dropout_without_a_key_is_an_error():
    net = Net()
    key_dropout(net, seed=5)
    with pytest.raises(UsageError, match="first: dropout in training mode outside"):
        net(ONES)


@each_row(
    "module",
    [nn.Dropout1d(), nn.Dropout2d(), nn.Dropout3d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()],
)
def test_dropouts_that_cannot_be_keyed_are_refused_by_name(module):
    model = nn.Sequential(nn.Linear(2, 2), module)
    with pytest.raises(UsageError, match=f"^1: {type(module).__name__} cannot be keyed"):
        key_dropout(model, seed=5)


def test_a_subclass_of_dropout_is_refused():
    class Mine(nn.Dropout):
        def forward(self, inputs):
            return inputs

    with pytest.raises(UsageError, match="Mine cannot be keyed"):
        key_dropout(nn.Sequential(Mine()), seed=5)


def test_a_shared_module_stays_shared():
    shared = nn.Dropout(0.5)
    net = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    key_dropout(net, seed=5)
    assert net["a"] is net["b"][0]
    assert type(net["a"]) is not nn.Dropout


def test_plain_dropout_would_not_follow_its_row():
    """The control: with torch's own modules the mask of a row depends on the call."""

    def row(net, keyed, positions, wanted):
        torch.manual_seed(0)
        with keyed.rows(0, [("s", position) for position in positions]):
            return net(torch.ones(len(positions), 256))[positions.index(wanted)]

    plain, net = nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))
    keyed = key_dropout(net, seed=5)
    assert torch.equal(row(net, keyed, (0, 1), 1), row(net, keyed, (1,), 1))
    assert not torch.equal(row(plain, keyed, (0, 1), 1), row(plain, keyed, (1,), 1))


LANE = (1 << 64) - 1
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
"""What splitmix64.c gives from the seed 1234567, as published for Rosetta Code's task
"Pseudo-random numbers/Splitmix64"."""


def by_definition(key: int, place: int) -> int:
    """Vigna's splitmix64.c in Python's integers: output ``place``, counted from 0."""
    word = (key + (place + 1) * 0x9E3779B97F4A7C15) & LANE
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & LANE
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & LANE
    return word ^ (word >> 31)


def keys(count: int, start: int = 0) -> torch.Tensor:
    return torch.tensor([signed(mask_seed("test", n)) for n in range(start, start + count)])


def test_the_published_vectors():
    found = outputs(torch.tensor([1234567]), 0, 5)[0].tolist()
    assert [each & LANE for each in found] == PUBLISHED


@given(key=st.integers(0, LANE), place=st.integers(0, 1 << 40))
@settings(max_examples=60)
def test_tensors_compute_what_the_definition_says(key, place):
    found = outputs(torch.tensor([signed(key)]), place, place + 1)
    assert found.item() & LANE == by_definition(key, place)


def test_an_element_is_dropped_by_its_word_alone():
    """The rule of the module, element by element: also for an odd number of them."""
    p, elements = 0.3, 9
    found = kept(keys(2), elements, p)
    for row, key in enumerate(keys(2).tolist()):
        for element in range(elements):
            word = by_definition(key & LANE, element // 2) >> (32 * (element % 2)) & 0xFFFFFFFF
            number = word - (1 << 32) if word >= 1 << 31 else word
            assert bool(found[row, element]) == (number >= round(p * 2**32) - 2**31)


@pytest.mark.parametrize("at_once", [1, 7, 64, 1 << 20])
def test_chunks_change_nothing(monkeypatch, at_once):
    whole = kept(keys(5), 333, 0.5)
    monkeypatch.setitem(keyed_dropout._WORDS_AT_ONCE, "cpu", at_once)
    assert torch.equal(kept(keys(5), 333, 0.5), whole)

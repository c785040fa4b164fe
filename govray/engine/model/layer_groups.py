"""Layer groups: which tensors of a model a depth policy means by which name.

The groups of any ``nn.Module`` with repeated blocks, in canonical order:

``embedding``  what turns inputs into the first block's input: every
               ``nn.Embedding``; defined before the blocks also convolutions,
               norms that can't be the final one, and linear layers if there is
               no embedding or convolution; and learned inputs that a module holds
               directly under one of their usual names (``cls_token``, ``pos_embed``)
``block.i``    entry i of the blocks
``final_norm`` norms defined after the blocks, or named so
``head``       the last module with parameters that is defined after the blocks
               and is no norm

The blocks are the list with the most parameters among the lists that are in no other one. A list is
an ``nn.ModuleList``, or an ``nn.Sequential`` whose entries are all of one composite class. Several
such count as one if they are defined one after the other with numbered names (``layer1``,
``layer2``).

A policy's own groups (FQN globs) come first in deciding and last in order. They hold exactly what
their globs match, even under a name of the list above. A list
that they hold whole is not taken for the blocks if the model has others. A tensor
that has several FQNs in several groups is a group of its own,
``embedding+head``, whose permission is the intersection of its parts.

Invariants: every parameter is in exactly one group, or the model is refused by
the parameter's name. Two parameters that share memory without being one
parameter are refused, for one would carry gradients into the other. The answer
depends on names, classes and definition order only, so the meta device gives
the same one.

What it does not do: buffers (no gradient reaches them), and guessing. Definition
order is read as data flow; where that leaves doubt, the policy must name groups.
There is doubt about

* a second list: a second tower, an encoder beside a decoder;
* other parameters that a module outside the blocks holds directly, since their place among the
  modules does not show;
* linear layers beside an embedding;
* a norm defined before the blocks that may be the final one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from govray.engine.steps.named_groups import grouped, named_groups
from govray.errors import Refused

_NAME_IT = "Name it in the policy's `groups`, for example `groups: {{other: [{glob!r}]}}`"

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# What vision and sequence models call the parameters that they add to, or put
# beside, their first block's input.
_LEARNED_INPUT = re.compile(
    r"(cls|class|reg|register|dist|distillation)_tokens?"
    r"|(pos|position|positional|patch|class|time)_?(embed|embedding|embeddings|encoding)"
)
_FINAL = re.compile(r"(.*_)?(final|last|post)(_.*)?|.*_f")
_NO_GROUPS: Mapping[str, Sequence[str]] = MappingProxyType({})


# What may follow in numbers: towers, branches and heads may not.
_STAGE = re.compile(r"(.*(?:layer|layers|stage|stages|block|blocks|group|groups)_?)(\d+)")

_List = Mapping[str, int]
"""FQN of each entry of a list of modules → its number, in order."""


def layer_groups(
    model: nn.Module, custom: Mapping[str, Sequence[str]] = _NO_GROUPS
) -> dict[str, tuple[str, ...]]:
    """Put every parameter of a model into one layer group.

    Args:
        model: On any device, the meta device included.
        custom: The policy's own groups: name → globs over FQNs.

    Returns:
        Layer group → FQNs, as ``model.named_parameters()`` calls them and in
        its order. Groups are in canonical order; none is empty.

    Raises:
        Refused: A parameter is in no group, in two of the policy's groups, or shares memory with
            another. Or a group of the policy matches nothing.
    """
    # Every name of every parameter: a tied one has several.
    names: dict[nn.Parameter, list[str]] = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(fqn)
    _refuse_overlap(names)

    all_names = [fqn for aliases in names.values() for fqn in aliases]
    named = named_groups(all_names, custom)
    lists = _lists(model)
    inferred = _inferred(model, _blocks(model, lists, named), lists)

    def unnamed(fqn: str) -> Refused:
        return Refused(
            f"parameter {fqn} is in no layer group",
            where=type(model).__name__,
            do=_how_to_name(fqn, lists),
        )

    return grouped(names.values(), named, inferred, custom, unnamed)


def blocks(model: nn.Module) -> dict[str, str]:
    """``block.i`` → FQN of the module, for the repeated blocks as they are inferred.
    Empty if the model has none, or if they hold no parameter."""
    found = _blocks(model, _lists(model), {})
    return {
        f"block.{number}": fqn for fqn, number in sorted(found.items(), key=lambda each: each[1])
    }


def _lists(model: nn.Module) -> list[_List]:
    """The lists of modules that hold parameters and are in no other list, as they are defined."""
    holders = {
        fqn: module
        for fqn, module in model.named_modules()
        if fqn and _is_list(fqn, module) and next(module.parameters(), None) is not None
    }
    places = {
        fqn: place for place, (fqn, _) in enumerate(model.named_parameters(remove_duplicate=False))
    }
    chains: list[list[str]] = []
    for fqn in holders:
        if any(fqn.startswith(f"{other}.") for other in holders):
            continue
        if chains and _continues(chains[-1][-1], fqn, places):
            chains[-1].append(fqn)
        else:
            chains.append([fqn])
    return [
        {
            entry: number
            for number, entry in enumerate(
                f"{fqn}.{name}" for fqn in chain for name in _children(holders[fqn])
            )
        }
        for chain in chains
    ]


def _is_list(fqn: str, module: nn.Module) -> bool:
    if isinstance(module, nn.ModuleList):
        # A parametrized tensor keeps its parts in a module list too, and embeddings
        # that stand side by side are no depth.
        return not isinstance(module, ParametrizationList) and not all(
            isinstance(entry, _EMBEDDINGS) for entry in module
        )
    if not isinstance(module, nn.Sequential):
        return False
    kinds = {type(entry) for entry in module}
    composite = not any(kind.__module__.startswith("torch.nn.") for kind in kinds)
    # One module alone repeats nothing, but a stage may be short.
    repeats = len(module) > 1 or _STAGE.fullmatch(fqn) is not None
    return len(kinds) == 1 and composite and repeats


def _children(module: nn.Module) -> list[str]:
    """Names of the entries, also of one that is there twice."""
    return [
        name for name, _ in module.named_modules(remove_duplicate=False) if name and "." not in name
    ]


def _continues(previous: str, fqn: str, places: Mapping[str, int]) -> bool:
    """Whether a list takes up where another ends: ``layer2`` after ``layer1``."""
    one, two = _STAGE.fullmatch(previous), _STAGE.fullmatch(fqn)
    if one is None or two is None or one[1] != two[1] or int(one[2]) + 1 != int(two[2]):
        return False
    ends = max(place for name, place in places.items() if name.startswith(f"{previous}."))
    begins = min(place for name, place in places.items() if name.startswith(f"{fqn}."))
    return ends + 1 == begins


def _blocks(model: nn.Module, lists: Sequence[_List], named: Mapping[str, str]) -> _List:
    """The list of the repeated blocks; empty if the model has none."""
    sizes = {
        fqn: parameter.numel() for fqn, parameter in model.named_parameters(remove_duplicate=False)
    }
    held = [[fqn for fqn in sizes if _entry(fqn, each) is not None] for each in lists]
    # A list that the policy names in full needs no inference, so it leaves the place to another.
    left = [i for i, fqns in enumerate(held) if not named.keys() >= set(fqns)]
    candidates = left or range(len(lists))
    largest = max(candidates, key=lambda i: sum(sizes[fqn] for fqn in held[i]), default=None)
    return {} if largest is None else lists[largest]


def _entry(fqn: str, entries: _List) -> str | None:
    """The entry of a list that holds the parameter, if one does."""
    return next((entry for entry in entries if fqn.startswith(f"{entry}.")), None)


def _inferred(model: nn.Module, blocks: _List, lists: Sequence[_List]) -> dict[str, str]:
    """FQN (every alias) → group, for the parameters whose place leaves no doubt."""
    if not blocks:
        return {}
    # Parameters and their owners in definition order, the order of named_parameters.
    owners = {
        fqn: model.get_submodule(fqn.rpartition(".")[0])
        for fqn, _ in model.named_parameters(remove_duplicate=False)
    }
    inside = {fqn: entry for fqn in owners if (entry := _entry(fqn, blocks)) is not None}
    groups = {fqn: f"block.{blocks[entry]}" for fqn, entry in inside.items()}
    outside = {fqn: owner for fqn, owner in owners.items() if fqn not in inside}
    groups |= {fqn: "embedding" for fqn, owner in outside.items() if isinstance(owner, _EMBEDDINGS)}
    # Of a second list nothing else is inferred: it may be beside the blocks, not before or after.
    single = [fqn for fqn in outside if not any(_entry(fqn, each) is not None for each in lists)]
    places = {fqn: place for place, fqn in enumerate(owners)}
    first = min(places[fqn] for fqn in inside)
    before = [fqn for fqn in single if places[fqn] < first]
    after = [fqn for fqn in single if places[fqn] > first]

    looks_up = any(isinstance(owners[fqn], (*_EMBEDDINGS, *_CONVOLUTIONS)) for fqn in before)
    ends_in_norm = any(_is_norm(owners[fqn]) for fqn in after)
    for fqn in before:
        owner = owners[fqn]
        if _is_norm(owner):
            group = _early_norm(fqn, owners, before, ends_in_norm)
            if group is not None:
                groups[fqn] = group
        # A linear layer beside an embedding may be a projection or a head defined early.
        elif (
            isinstance(owner, _CONVOLUTIONS)
            or (isinstance(owner, nn.Linear) and not looks_up)
            or _LEARNED_INPUT.fullmatch(fqn.rpartition(".")[2])
        ):
            groups[fqn] = "embedding"
    others = [fqn for fqn in after if fqn not in groups and not _is_norm(owners[fqn])]
    for fqn in after:
        if _is_norm(owners[fqn]):
            groups[fqn] = "final_norm"
        elif others and owners[fqn] is owners[others[-1]]:
            groups[fqn] = "head"
    return groups


def _early_norm(
    fqn: str, owners: Mapping[str, nn.Module], before: Sequence[str], ends_in_norm: bool
) -> str | None:
    """The group of a norm defined before the blocks; None if in doubt. Some models define their
    final norm first. So where none is defined after the blocks, the place alone says nothing."""
    norm = fqn.rpartition(".")[0]
    parent, _, name = norm.rpartition(".")
    if _FINAL.fullmatch(name):
        return "final_norm"
    if ends_in_norm:
        return "embedding"
    beside = [each for each in before if each.startswith(f"{parent}." if parent else "")]
    if parent and len(beside) == sum(each.startswith(f"{parent}.") for each in owners):
        # It shares a module that ends before the blocks.
        inputs: Iterable[str] = beside
    else:
        # Or it comes straight after what it normalises.
        earlier = [each for each in before[: before.index(fqn)] if owners[each] is not owners[fqn]]
        inputs = [each for each in earlier[-1:] if isinstance(owners[each], _CONVOLUTIONS)]
    looks_up = any(isinstance(owners[each], (*_EMBEDDINGS, *_CONVOLUTIONS)) for each in inputs)
    return "embedding" if looks_up else None


def _how_to_name(fqn: str, lists: Sequence[_List]) -> str:
    """What to write in the policy; of a list, its whole content."""
    entry = next((e for each in lists if (e := _entry(fqn, each)) is not None), None)
    glob = fqn if entry is None else f"{entry.rpartition('.')[0]}.*"
    advice = _NAME_IT.format(glob=glob)
    return advice if lists else f"The model has no list of repeated blocks. {advice}"


def _is_norm(module: nn.Module) -> bool:
    """Models bring norm classes of their own, so the class's name decides."""
    return "norm" in type(module).__name__.lower()


def _refuse_overlap(names: Mapping[nn.Parameter, Sequence[str]]) -> None:
    """Refuse two parameters with a byte in common.
    The meta device has no bytes, and a DTensor's are not at its own address."""
    spans = sorted(
        (parameter.data_ptr(), parameter.numel() * parameter.element_size(), fqns[0])
        for parameter, fqns in names.items()
        if parameter.data_ptr() and parameter.numel()
    )
    for (start, size, fqn), (next_start, _, next_fqn) in pairwise(spans):
        if next_start < start + size:
            raise Refused(
                f"parameters {fqn} and {next_fqn} share memory but are two parameters",
                where="model",
                do="Tie them by assigning the same nn.Parameter to both",
            )

"""Layer groups: which tensors of a model a depth policy means by which name.

The groups of any ``nn.Module`` whose repeated blocks sit in an
``nn.ModuleList``, in canonical order:

``embedding``  what turns inputs into the first block's input: every
               ``nn.Embedding``; defined before the blocks also convolutions
               and norms, and linear layers if there is no embedding or
               convolution
``block.i``    entry i of the blocks: of the module lists that are in no other
               one, that with the most parameters
``final_norm`` norms defined after the blocks
``head``       the last module with parameters that is defined after the blocks
               and is no norm

A policy's own groups (FQN globs) come first in deciding, last in order, and
hold exactly what their globs match, even under a name of the list above. A
tensor that has several FQNs in several groups is a group of its own,
``embedding+head``, whose permission is the intersection of its parts.

Invariants: every parameter is in exactly one group, or the model is refused by
the parameter's name. Two parameters that share memory without being one
parameter are refused, for one would carry gradients into the other. The answer
depends on names, classes and definition order only, so the meta device gives
the same one.

What it does not do: buffers (no gradient reaches them), and guessing. Definition
order is read as data flow; where that leaves doubt, the policy must name groups.
There is doubt about parameters that a model holds directly (their place among
the modules does not show), and about linear layers beside an embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from govray.errors import Refused
from govray.governance import globs

_NAME_IT = "Name it in the policy's `groups`, for example `groups: {{other: [{fqn!r}]}}`"

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NO_GROUPS: Mapping[str, Sequence[str]] = MappingProxyType({})


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
        Refused: A parameter is in no group, in two of the policy's groups, or
            shares memory with another; or a group of the policy matches nothing.
    """
    # Every name of every parameter: a tied one has several.
    names: dict[nn.Parameter, list[str]] = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(fqn)
    _refuse_overlap(names)

    all_names = [fqn for aliases in names.values() for fqn in aliases]
    named = _named(all_names, custom)
    inferred = _inferred(model)
    order = _canonical_order(inferred.values(), custom)

    groups: dict[str, list[str]] = {}
    for aliases in names.values():
        parts = set()
        for fqn in aliases:
            group = named.get(fqn, inferred.get(fqn))
            if group is None or (group in custom and fqn not in named):
                raise Refused(
                    f"parameter {fqn} is in no layer group",
                    where=type(model).__name__,
                    do=_NAME_IT.format(fqn=fqn),
                )
            parts.add(group)
        groups.setdefault("+".join(sorted(parts, key=order.__getitem__)), []).append(aliases[0])

    def place(group: str) -> tuple[int, ...]:
        return tuple(order[part] for part in group.split("+"))

    return {group: tuple(groups[group]) for group in sorted(groups, key=place)}


def _named(fqns: Sequence[str], custom: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """FQN → the policy's group whose globs match it."""
    named: dict[str, str] = {}
    for group, patterns in custom.items():
        matched = [fqn for fqn in fqns if any(globs.matches(p, fqn) for p in patterns)]
        if not matched:
            raise Refused(
                f"layer group {group} matches no parameter of the model",
                where=f"groups.{group}: {', '.join(patterns)}",
                do="Correct the globs; they match fully qualified parameter names",
            )
        for fqn in matched:
            if fqn in named:
                raise Refused(
                    f"parameter {fqn} is in two layer groups, {named[fqn]} and {group}",
                    where="groups",
                    do="Make the globs disjoint",
                )
            named[fqn] = group
    return named


def _inferred(model: nn.Module) -> dict[str, str]:
    """FQN (every alias) → group, for the parameters whose place leaves no doubt."""
    blocks = _blocks(model)
    if blocks is None:
        return {}
    # Parameters and their owners in definition order, the order of named_parameters.
    owners = {
        fqn: model.get_submodule(fqn.rpartition(".")[0])
        for fqn, _ in model.named_parameters(remove_duplicate=False)
    }
    inside = {fqn for fqn in owners if fqn.startswith(f"{blocks}.")}
    first = next(place for place, fqn in enumerate(owners) if fqn in inside)
    before = [fqn for place, fqn in enumerate(owners) if fqn not in inside and place < first]
    after = [fqn for place, fqn in enumerate(owners) if fqn not in inside and place > first]

    groups = {fqn: f"block.{fqn[len(blocks) + 1 :].split('.')[0]}" for fqn in inside}
    for fqn, owner in owners.items():
        if fqn not in inside and isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
            groups[fqn] = "embedding"
    looks_up = any(
        isinstance(owners[fqn], (nn.Embedding, nn.EmbeddingBag, *_CONVOLUTIONS)) for fqn in before
    )
    for fqn in before:
        owner = owners[fqn]
        # A linear layer beside an embedding may be a projection or a head defined early.
        projects = isinstance(owner, nn.Linear) and not looks_up
        if projects or _is_norm(owner) or isinstance(owner, _CONVOLUTIONS):
            groups[fqn] = "embedding"
    others = [fqn for fqn in after if fqn not in groups and not _is_norm(owners[fqn])]
    for fqn in after:
        if _is_norm(owners[fqn]):
            groups[fqn] = "final_norm"
        elif others and owners[fqn] is owners[others[-1]]:
            groups[fqn] = "head"
    return groups


def _blocks(model: nn.Module) -> str | None:
    """FQN of the module list that holds the repeated blocks, or None."""
    lists = {
        fqn: sum(parameter.numel() for parameter in module.parameters())
        for fqn, module in model.named_modules()
        # A parametrized tensor keeps its parts in a module list too.
        if isinstance(module, nn.ModuleList) and not isinstance(module, ParametrizationList)
    }
    outermost = {
        fqn: size
        for fqn, size in lists.items()
        if size and not any(fqn.startswith(f"{other}.") for other in lists)
    }
    return max(outermost, key=outermost.__getitem__) if outermost else None


def _is_norm(module: nn.Module) -> bool:
    """Models bring norm classes of their own, so the class's name decides."""
    return "norm" in type(module).__name__.lower()


def _canonical_order(inferred: Iterable[str], custom: Iterable[str]) -> dict[str, int]:
    blocks = {group for group in (*inferred, *custom) if group.startswith("block.")}
    numbered = sorted(blocks, key=lambda group: (len(group), group))
    standard = ["embedding", *numbered, "final_norm", "head"]
    return {group: place for place, group in enumerate(dict.fromkeys([*standard, *custom]))}


def _refuse_overlap(names: Mapping[nn.Parameter, Sequence[str]]) -> None:
    """Refuse two parameters with a byte in common (on the meta device there are no bytes)."""
    spans = sorted(
        (parameter.data_ptr(), parameter.numel() * parameter.element_size(), fqns[0])
        for parameter, fqns in names.items()
        if not parameter.is_meta and parameter.numel()
    )
    for (start, size, fqn), (next_start, _, next_fqn) in pairwise(spans):
        if next_start < start + size:
            raise Refused(
                f"parameters {fqn} and {next_fqn} share memory but are two parameters",
                where="model",
                do="Tie them by assigning the same nn.Parameter to both",
            )

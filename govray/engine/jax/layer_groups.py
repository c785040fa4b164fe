"""Layer groups of a Flax NNX model: which parameters a depth policy means by which name.

``embedding``  every ``nnx.Embed``
``block.i``    entry i of the blocks: the ``nnx.List`` with the most parameters
``final_norm`` the one norm that is outside the blocks
``head``       the one other module with parameters that is outside the blocks

A policy's own groups (FQN globs) come first in deciding and last in order. A parameter that several
places hold is in ``embedding+head`` or the like, whose permission is the intersection of its parts.

A model without a head reads its embedding as one (``nnx.Embed.attend``), which no name shows. So
its embeddings are ``embedding+head``.

Invariants: every parameter is in exactly one group, or the model is refused by the parameter's
name. Where two modules could be the final norm, or the head, the policy must name them. Nothing is
read from the order of definition, for models lose it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from flax import nnx

from govray.engine.jax.named_parameters import aliases, fqn, named_modules
from govray.engine.steps.named_groups import grouped, named_groups
from govray.errors import Refused

_NO_GROUPS: Mapping[str, Sequence[str]] = MappingProxyType({})


def layer_groups(
    model: nnx.Module, custom: Mapping[str, Sequence[str]] = _NO_GROUPS
) -> dict[str, tuple[str, ...]]:
    """Put every parameter of a model into one layer group.

    Args:
        custom: The policy's own groups: name → globs over FQNs.

    Returns:
        Layer group → FQNs, sorted. Groups are in canonical order; none is empty.

    Raises:
        Refused: A parameter is in no group, or in two of the policy's. Or a group of the policy
            matches nothing.
    """
    names = [
        [fqn(path) for path in paths]
        for variable, paths in aliases(model).values()
        if isinstance(variable, nnx.Param)
    ]
    named = named_groups([name for each in names for name in each], custom)
    inferred = _inferred(model, [name for each in names for name in each], named)

    def unnamed(name: str) -> Refused:
        return Refused(
            f"parameter {name} is in no layer group",
            where=type(model).__name__,
            do=f"Name it in the policy's `groups`, for example `groups: {{other: [{name!r}]}}`",
        )

    return grouped(names, named, inferred, custom, unnamed)


def _inferred(model: nnx.Module, names: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    """FQN → group, for the parameters whose place leaves no doubt."""
    modules = named_modules(model)
    blocks = _blocks(modules, names)
    if blocks is None:
        return {}
    found: dict[str, str] = {}
    inside = [name for name in names if name.startswith(f"{blocks}.")]
    for name in inside:
        found[name] = f"block.{name.removeprefix(f'{blocks}.').partition('.')[0]}"
    owners = {name: modules[name.rpartition(".")[0]] for name in names if name not in found}
    embeddings = [name for name, owner in owners.items() if isinstance(owner, nnx.Embed)]
    norms = [name for name, owner in owners.items() if _is_norm(owner)]
    others = [name for name in owners if name not in {*embeddings, *norms}]
    for group, candidates in (("final_norm", norms), ("head", others)):
        left = [name for name in candidates if name not in named]
        if len({id(owners[name]) for name in left}) == 1:
            found |= dict.fromkeys(left, group)
    return found | dict.fromkeys(embeddings, "embedding" if others else "embedding+head")


def _blocks(modules: Mapping[str, nnx.Module], names: Sequence[str]) -> str | None:
    """FQN of the list with the most parameters, of those in no other list."""
    lists = [place for place, module in modules.items() if isinstance(module, nnx.List)]
    outermost = [
        place for place in lists if not any(place.startswith(f"{other}.") for other in lists)
    ]
    held = {place: sum(name.startswith(f"{place}.") for name in names) for place in outermost}
    return max((place for place in outermost if held[place]), key=held.__getitem__, default=None)


def _is_norm(module: nnx.Module) -> bool:
    """Models bring norm classes of their own, so the class's name decides."""
    return "norm" in type(module).__name__.lower()

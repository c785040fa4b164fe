"""Layer groups by name, of whatever framework: the policy's own, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from govray.errors import Refused
from govray.governance.policy import globs


def named_groups(fqns: Sequence[str], custom: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """FQN → the policy's group whose globs match it.

    Args:
        fqns: Every name of every parameter.
        custom: The policy's own groups: name → globs over FQNs.

    Raises:
        Refused: A group matches nothing, or two match one parameter.
    """
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


def grouped(
    aliases: Iterable[Sequence[str]],
    named: Mapping[str, str],
    inferred: Mapping[str, str],
    custom: Iterable[str],
    unnamed: Callable[[str], Refused],
) -> dict[str, tuple[str, ...]]:
    """Layer group → FQNs, in canonical order of the groups; none is empty.

    Args:
        aliases: Of each parameter all names, its own first. Where they are in several groups, it
            is in ``embedding+head`` or the like, whose permission is the intersection.
        named: What `named_groups` gives.
        inferred: FQN → group, where no name is needed.
        custom: Names of the policy's own groups, which hold what their globs match alone.
        unnamed: The error for a name that is in no group.
    """
    custom = tuple(custom)
    order = _canonical_order(inferred.values(), custom)
    groups: dict[str, list[str]] = {}
    for names in aliases:
        parts: set[str] = set()
        for name in names:
            group = named.get(name, inferred.get(name))
            if group is None or (group in custom and name not in named):
                raise unnamed(name)
            parts |= {*group.split("+")}
        groups.setdefault("+".join(sorted(parts, key=order.__getitem__)), []).append(names[0])
    return {
        group: tuple(groups[group])
        for group in sorted(groups, key=lambda group: [order[part] for part in group.split("+")])
    }


def _canonical_order(inferred: Iterable[str], custom: Iterable[str]) -> dict[str, int]:
    """Layer group → its place: embedding, blocks by number, final norm, head, then the policy's."""
    blocks = {group for group in (*inferred, *custom) if group.startswith("block.")}
    numbered = sorted(blocks, key=lambda group: (len(group), group))
    standard = ["embedding", *numbered, "final_norm", "head"]
    return {group: place for place, group in enumerate(dict.fromkeys([*standard, *custom]))}

"""What may change in a trial that takes over another's state.

The trial goes on from the other's commit. So nothing may change that shapes the weights, that says
which rows are read and in which order, or who may update what. This is the whole list:

* numbers of ``optimizer`` and of ``schedule``: learning rate, momentum, clipping, warm-up;
* hyperparameters that the entrypoint names in ``may_change``, such as dropout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real

from govray.errors import UsageError, suggestion
from govray.train.inputs.experiment_config import Experiment
from govray.tune.space import Dimension, walk

HYPERPARAMETERS = "hyperparameters."

_NUMBERS = ("optimizer.", "schedule.")


def check_may_change(space: Mapping[str, Dimension], experiment: Experiment) -> None:
    """Refuse a space with a name that may not change, or a value of the optimizer's that is no
    number.
    """
    declared: Iterable[str] | None = None
    for _, name, dimension in walk(space):
        if name.startswith(_NUMBERS) and not name.endswith(".name"):
            if all(map(_is_number, dimension.ends)):
                continue
            what = f"{name} may change to another number only, where a trial goes on from another"
            raise UsageError(what, where="search.space", do="Give numbers, or search without pbt")
        if name.startswith(HYPERPARAMETERS):
            if declared is None:
                declared = declared_changes(experiment)
            if name.removeprefix(HYPERPARAMETERS) in declared:
                continue
        known = ", ".join(
            [
                "numbers of optimizer.* and schedule.*",
                *(HYPERPARAMETERS + n for n in declared or ()),
            ]
        )
        near = suggestion(name, [HYPERPARAMETERS + each for each in declared or ()])
        raise UsageError(
            f"{name} can't change while a trial runs{near}",
            where="search.space",
            do=f"With pbt vary {known}; an entrypoint names further hyperparameters in may_change",
        )


def declared_changes(experiment: Experiment) -> tuple[str, ...]:
    from govray.train.loop.entrypoint import own_loop, resolve

    named = own_loop(experiment) or resolve(experiment)[0]
    found = getattr(named, "may_change", ())
    if not isinstance(found, tuple | list) or not all(isinstance(each, str) for each in found):
        raise UsageError(
            "may_change is a tuple of hyperparameters' names",
            where=f"entrypoint {experiment.entrypoint}",
        )
    return tuple(found)


def _is_number(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_number, value))
    return value is None or (isinstance(value, Real) and not isinstance(value, bool))

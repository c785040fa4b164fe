"""At every step: does anything but the optimizer's own step write a weight or a buffer?

A trial before the first step (``optimizer_trial.py``) can't see what a hook begins at the tenth. So
versions are compared, which torch counts up with each write in place. Reading one takes some ten
nanoseconds, and waits for no device. A write through ``.data`` counts up nothing. So what tensors
hold is compared too, after the 2nd, 16th, 32nd, … 512th step, and then after each 512th.

Invariants:

* From one step to the next, no parameter and no buffer is written or replaced. The exceptions are
  the parameters that the step trains, inside the ``step`` of the optimizer's class.
* Hooks of the optimizer, and wrappers around its ``step``, write gradients or trained parameters
  only if they did so in the trial. They replace no attribute of a module.

An adapter is looked at in the steps that reach it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, is_
from typing import Any, cast

import torch
from torch import Tensor, nn

from govray.engine.collective.routed_model import RoutedModel
from govray.engine.model.tensor_content import contents
from govray.engine.startup.model_state import own_attributes
from govray.engine.startup.optimizer_trial import GLOBAL_HOOKS, try_optimizer
from govray.engine.steps.row_difference import due_again
from govray.errors import Refused
from govray.governance.policy.route import ADAPTER

_VERSION = attrgetter("_version")

_BEHIND = "weights after a step"

State = tuple[list[Tensor], list[int]]


class WeightWatch:
    """Tries an optimizer, and then compares the versions of its model's parameters and buffers,
    step by step.

    Args:
        optimizer: Its hooks run inside `stepping`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, routed: RoutedModel) -> None:
        self._optimizer = optimizer
        self._routed = routed
        self._parameters = routed.parameters
        self._tried = False
        self._allowed: set[str] = set()
        model = routed.model
        self._modules = [*model.modules()]
        # A tied parameter has the name and place that it has first, as in `named_parameters`.
        places = {
            id(tensor): (f"{fqn}.{name}" if fqn else name, held, name)
            for fqn, module in reversed([*model.named_modules()])
            for held in (module._parameters, module._buffers)
            for name, tensor in held.items()
            if tensor is not None
        }
        self._names = [name for name, _, _ in places.values()]
        self._places = [(held, name) for _, held, name in places.values()]
        self._base: State | None = None
        self._adapters: dict[str, int] = {}
        self._steps = 0
        self._content: dict[str, int] | None = None

    def look(self, adapters: Iterable[str]) -> None:
        """See that all is as the last step left it; before the first, try the optimizer.
        Collective. ``adapters``: those that this step reaches."""
        self.try_optimizer()
        now = self._now()
        if self._base is not None:
            self._require_same(self._base, now)
        self._base = now
        self._steps += 1
        self._require_content()
        for adapter in adapters:
            for name in self._routed.groups[f"{ADAPTER}{adapter}"]:
                version = self._parameters[name]._version
                if self._adapters.setdefault(name, version) != version:
                    _refuse(name)

    def try_optimizer(self) -> None:
        """Try it, if it was not tried yet. Collective."""
        if not self._tried:
            self._tried = True
            try_optimizer(self._optimizer, self._routed, partial(self.stepping, trial=True))

    @contextmanager
    def stepping(self, trained: Sequence[str], *, trial: bool = False) -> Iterator[None]:
        """Inside, the optimizer steps once.

        Args:
            trained: Names of the parameters that it may write.
            trial: Whether hooks may do for the first time what they will do in training.
        """
        if not trial:
            self._require_same(self._base or self._now(), self._now())
            self._require_content()
            self._content = None
        moving = [self._parameters[name] for name in trained]
        if self._is_hooked():
            attributes = self._attributes()
            with self._around(moving, trial=trial):
                yield
            if not trial and attributes != self._attributes():
                raise Refused(
                    "a hook of the optimizer changed an attribute of a module, which it did not "
                    "do when it was tried",
                    where=type(self._optimizer).__name__,
                    do="Move nothing but parameters there, each by its own gradient",
                )
        else:
            yield
        if not trial:
            now = self._now()
            self._require_same(self._base or now, now, but=frozenset(trained))
            self._base = now
            if _BEHIND in self._allowed or not self._content:
                self._note_content()
            self._adapters |= {
                name: parameter._version
                for name, parameter in zip(trained, moving, strict=True)
                if name.startswith("adapter:")
            }

    def _note_content(self) -> None:
        if self._steps == 2 or due_again(self._steps):
            self._content = contents(dict(zip(self._names, self._now()[0], strict=True)))

    def _require_content(self) -> None:
        if self._content is not None:
            now = contents(dict(zip(self._names, self._now()[0], strict=True)))
            for name, content in self._content.items():
                if now[name] != content:
                    _refuse(name)

    def _now(self) -> State:
        tensors = [held[name] for held, name in self._places]
        return tensors, list(map(_VERSION, tensors))

    def _require_same(self, before: State, now: State, but: frozenset[str] = frozenset()) -> None:
        if before[1] == now[1] and all(map(is_, before[0], now[0])):
            return
        for name, *each in zip(self._names, *before, *now, strict=True):
            tensor, version, later, written = each
            if later is not tensor or (written != version and name not in but):
                _refuse(name)

    def _is_hooked(self) -> bool:
        """Whether anything but the step of its class runs when it steps."""
        wrapper = vars(self._optimizer).get("step")
        if hasattr(wrapper, "_torchdynamo_orig_callable"):
            return False  # compiled, and a hook would be compiled with it at every step
        own = vars(self._optimizer)
        hooks = [own.get(f"_optimizer_step_{when}_hooks") for when in ("pre", "post")]
        return wrapper is not None or any(hooks) or any(GLOBAL_HOOKS)

    def _attributes(self) -> list[dict[str, tuple[int, int]]]:
        return [
            {
                name: (id(each), each._version if isinstance(each, Tensor) else 0)
                for name, each in own_attributes(module).items()
            }
            for module in self._modules
        ]

    @contextmanager
    def _around(self, moving: Sequence[nn.Parameter], *, trial: bool) -> Iterator[None]:
        """See what hooks before and behind the optimizer's own step write."""

        def gradients() -> list[tuple[int, int]]:
            held = (parameter.grad for parameter in moving)
            return [(0, 0) if grad is None else (id(grad), grad._version) for grad in held]

        def require(what: str, before: Any, now: Any) -> None:
            if before == now or what in self._allowed:
                return
            if trial:
                self._allowed.add(what)
            else:
                raise Refused(
                    f"a hook of the optimizer wrote {what}, which it did not do when it was tried",
                    where=type(self._optimizer).__name__,
                    do="Let hooks do from the first step what they are to do, each parameter by "
                    "itself, or leave them out",
                )

        def weights() -> list[int]:
            if trial:  # what they write through `.data` they may write later
                return [*contents({str(n): each for n, each in enumerate(moving)}).values()]
            return list(map(_VERSION, moving))

        first = gradients(), weights()
        last: list[list[int]] = []

        def begins(*_: Any) -> None:
            require("gradients before a step", first[0], gradients())
            require("weights before a step", first[1], weights())

        def ends(*_: Any) -> None:
            last.append(weights())
            if not trial:
                self._note_content()

        before = self._optimizer.register_step_pre_hook(begins)
        behind = self._optimizer.register_step_post_hook(ends)
        hooks = cast("OrderedDict[int, Any]", self._optimizer._optimizer_step_post_hooks)
        hooks.move_to_end(behind.id, last=False)
        try:
            yield
        finally:
            before.remove()
            behind.remove()
        for each in last:
            require(_BEHIND, each, weights())


def _refuse(name: str) -> None:
    raise Refused(
        f"something other than the optimizer wrote {name}, so rows of one class could move what "
        "another learns",
        where=name.rpartition(".")[0] or "model",
        do="Leave parameters and buffers alone between steps, in hooks and in the forward",
    )

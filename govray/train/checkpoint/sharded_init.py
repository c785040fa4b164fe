"""A model built so that this rank holds its rows of every parameter, and never the whole model.

`rows_of` calls a function that builds a model. Each parameter that a module registers becomes a
stand-in. What the constructor writes into it is done on a real tensor of its size: the same kernels
make the same draws. When the next parameter has its turn, this
rank's rows are kept and the rest is let go. So at most two parameters are whole at any time.

Invariants:

* The rows are those of the model that the function builds by itself, bit for bit.
* What can't be done on one parameter at a time is not guessed: the building ends, and says why. A
  caller then builds the whole model.
* Buffers, and all that is no parameter, are made as ever.

The sums over the bits of each whole parameter tell ranks whether they built the same model.

Source: the idea of deferred initialisation is torch's own (``torch.device("meta")``, torchdistX).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from govray.train.checkpoint.sharded_file import cut

_OVERWRITES = frozenset(
    f"aten::{name}"
    for name in (
        "normal_",
        "uniform_",
        "fill_",
        "zero_",
        "random_",
        "bernoulli_",
        "exponential_",
        "log_normal_",
        "cauchy_",
        "geometric_",
        "copy_",
    )
)
"""Operations after which nothing of what was there is left."""

_BY_NUMBER = frozenset({"aten::mul_", "aten::div_", "aten::add_", "aten::sub_"})
"""Operations that treat each element alike: rows alone give the same bits."""


_ALL_OF_IT = frozenset(
    f"aten::{name}"
    for name in ("alias", "detach", "view", "t", "transpose", "permute", "squeeze", "unsqueeze")
)
"""Views that leave no element out."""

_BY_SHAPE = frozenset(
    f"aten::{name}"
    for name in (
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
    )
)
"""Operations that look at a tensor's shape alone."""


class NeedsWhole(Exception):
    """The model can't be built one parameter at a time."""


@dataclass(frozen=True)
class ModelRows:
    """A model whose parameters are on the meta device, and this rank's rows of them.

    Attributes:
        model: Its buffers are real.
        rows: FQN → (own rows, …), on the CPU, in the parameter's dtype. A tied tensor has its
            first name.
        sums: FQN → the sum over the bits of the whole parameter.
    """

    model: nn.Module
    rows: Mapping[str, Tensor]
    sums: Mapping[str, int]


def rows_of(build: Callable[[], nn.Module], rank: int, world: int) -> ModelRows:
    """Build a model, and keep one rank's rows of its parameters.

    Args:
        build: Makes the model on the CPU. It is called once.

    Raises:
        NeedsWhole: The model can't be built so. Generators have moved on by then.
    """
    building = _Building(rank, world)
    # Threads of a loader may make modules too, and those are not ours.
    here = threading.get_ident()

    def adopt(_: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if threading.get_ident() != here or parameter.device.type != "cpu":
            return None
        # Lazy ones, and those that are a part of this model already.
        return building.adopt(parameter) if type(parameter) is nn.Parameter else None

    hook = register_module_parameter_registration_hook(cast(Any, adopt))
    try:
        with building:
            model = build()
    except Exception:
        if building.reason is None:
            raise
    finally:
        hook.remove()
    if building.reason is not None:  # its exception may have been swallowed
        raise NeedsWhole(building.reason)
    return building.finish(model)


class _Whole:
    """One parameter under construction.

    Attributes:
        rows: This rank's, once another parameter had its turn.
        sum: Over the bits of the whole, then.
    """

    def __init__(self, like: Tensor) -> None:
        self.shape, self.dtype = like.shape, like.dtype
        self.rows: Tensor | None = None
        self.sum = 0


class _StandIn(Tensor):
    """Has the shape of a parameter or of a view into it; what is done to it, `_Building` does."""

    building: _Building
    of: _Whole
    views: tuple[Callable[[Tensor], Tensor], ...]
    all_of_it: bool
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        building: _Building,
        of: _Whole,
        like: Tensor,
        views: tuple[Callable[[Tensor], Tensor], ...] = (),
    ) -> _StandIn:
        made: _StandIn = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        made.building, made.of, made.views, made.all_of_it = building, of, views, True
        return made

    def __init__(self, *_: object) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        ours = [each for each in tree_leaves((args, kwargs)) if isinstance(each, _StandIn)]
        return ours[0].building.run(func, args, kwargs or {}, ours)

    def __deepcopy__(self, memo: Any) -> Tensor:
        raise self.building.stopped("a parameter is copied")


class _Building(TorchDispatchMode):
    """Which parameter is whole at the moment; while entered, sees that no other one is used."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.reason: str | None = None
        self._rank, self._world = rank, world
        self._current: _Whole | None = None
        self._tensor: Tensor | None = None
        # Where parameters were that are whole no more; the reference keeps an address from others.
        self._left: dict[int, StorageWeakRef] = {}

    def stopped(self, why: str) -> NeedsWhole:
        self.reason = self.reason or why
        return NeedsWhole(self.reason)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for each in tree_leaves((args, kwargs)):
            plain = isinstance(each, Tensor) and not isinstance(each, _StandIn)
            if plain and each.untyped_storage()._cdata in self._left:
                raise self.stopped("a parameter's memory is used after another one was made")
        return func(*args, **(kwargs or {}))

    def adopt(self, parameter: nn.Parameter) -> nn.Parameter:
        """The stand-in of a parameter that is being registered."""
        whole = _Whole(parameter)
        self._turn(whole, parameter.detach())
        standing = _StandIn(self, whole, parameter)
        return nn.Parameter(standing, requires_grad=parameter.requires_grad)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Any, ours: list[_StandIn]) -> Any:
        first = ours[0]
        name = func._schema.name
        if name in _BY_SHAPE:
            like = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype)
            return func(like, *args[1:], **kwargs)
        if func.is_view or name == "aten::detach":
            return self._view(func, args, kwargs, ours)
        if not func._schema.is_mutable:
            return func(*self._real(args), **self._real(kwargs))
        if args[0] is not first or len(ours) > 1:
            raise self.stopped(f"{name} writes one parameter from another")
        if first.all_of_it and name in _OVERWRITES:
            self._turn(first.of, None)
        elif not first.views and name in _BY_NUMBER and self._by_number(first, args, kwargs):
            func(first.of.rows, *args[1:], **kwargs)
            return first
        func(*self._real(args), **kwargs)
        return first

    def _view(
        self, func: Any, args: tuple[Any, ...], kwargs: Any, ours: list[_StandIn]
    ) -> _StandIn:
        first, name = ours[0], func._schema.name
        shape = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="meta")
        like = func(shape, *args[1:], **kwargs)
        if not isinstance(like, Tensor):
            raise self.stopped(f"{name} takes a parameter apart")
        seen = _StandIn(self, first.of, like, first.views)
        seen.all_of_it = first.all_of_it and name in _ALL_OF_IT
        if name != "aten::detach":
            seen.views = (*seen.views, lambda tensor: func(tensor, *args[1:], **kwargs))
        return seen

    def finish(self, model: nn.Module) -> ModelRows:
        """Put meta tensors in the place of the stand-ins."""
        self._leave()
        rows: dict[str, Tensor] = {}
        sums: dict[str, int] = {}
        made: dict[int, nn.Parameter] = {}
        seen: set[int] = set()
        for fqn, module in model.named_modules(remove_duplicate=False):
            for name, parameter in module._parameters.items():
                if parameter is None or parameter.is_meta:
                    continue
                if id(parameter) not in made:
                    path = f"{fqn}.{name}" if fqn else name
                    whole = self._whole_of(parameter)
                    if id(whole) in seen or whole.rows is None:
                        raise self.stopped(f"{path} shares memory with another parameter")
                    seen.add(id(whole))
                    rows[path], sums[path] = whole.rows, whole.sum
                    shape = torch.empty(whole.shape, dtype=whole.dtype, device="meta")
                    made[id(parameter)] = nn.Parameter(shape, parameter.requires_grad)
                    made[id(made[id(parameter)])] = made[id(parameter)]
                module._parameters[name] = made[id(parameter)]
        return ModelRows(model, rows, sums)

    def _whole_of(self, parameter: nn.Parameter) -> _Whole:
        if isinstance(parameter, _StandIn):
            whole: _Whole = parameter.of
            return whole
        whole = _Whole(parameter)  # of another kind: it was made whole, and is cut now
        self._turn(whole, parameter.detach())
        self._leave()
        return whole

    def _by_number(self, standing: _StandIn, args: tuple[Any, ...], kwargs: Any) -> bool:
        number = args[1]
        return (
            standing.of is not self._current
            and standing.of.rows is not None
            and not kwargs
            and len(args) == 2
            and (not isinstance(number, Tensor) or number.dim() == 0)
        )

    def _real(self, values: Any) -> Any:
        def real(standing: _StandIn) -> Tensor:
            if standing.of is not self._current or self._tensor is None:
                raise self.stopped("a parameter is read after another one was made")
            tensor = self._tensor
            for view in standing.views:
                tensor = view(tensor)
            return tensor

        return tree_map_only(_StandIn, real, values)

    def _turn(self, whole: _Whole, tensor: Tensor | None) -> None:
        """Let a parameter be whole, with this content or any."""
        if whole is self._current:
            return
        self._leave()
        if tensor is None:
            tensor = torch.empty(whole.shape, dtype=whole.dtype)
        self._current, self._tensor = whole, tensor

    def _leave(self) -> None:
        """Keep this rank's rows of the parameter that is whole."""
        whole, tensor = self._current, self._tensor
        if whole is None or tensor is None:
            return
        if not tensor.dim():
            raise self.stopped("a parameter is a single number, which has no rows")
        own = cut(len(tensor), self._rank, self._world)
        whole.rows = tensor[own.start : own.stop].clone(memory_format=torch.contiguous_format)
        whole.sum = _sum_of_bits(tensor)
        storage = tensor.untyped_storage()
        self._left[storage._cdata] = StorageWeakRef(storage)
        self._current = self._tensor = None


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sum_of_bits(tensor: Tensor) -> int:
    bits = tensor.contiguous().view(-1)
    # By pieces: a sum of narrow integers begins with a wide copy of them.
    pieces = bits.view(_BITS[bits.element_size()]).split(1 << 16)
    return sum(int(piece.sum()) for piece in pieces)

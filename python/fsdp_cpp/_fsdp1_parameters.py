"""Parameters of modules under FullyShardedDataParallel: 1-D local ones for those who list them, whole ones for the
module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fsdp_cpp._fsdp1_parts import mark

_whole_class = torch.classes.fsdp_cpp.Whole
_place_class = torch.classes.fsdp_cpp.FlatPlace


@dataclass(frozen=True)
class Place:
    """The place of one parameter in its flattened unit, whose ranks hold equal parts."""

    offset: int
    numel: int
    part: int  # elements of each rank's part, padding included
    rank: int
    ranks: int

    def range_on(self, rank: int) -> tuple[int, int]:
        """The elements of the parameter that a rank holds."""
        begin, end = rank * self.part - self.offset, (rank + 1) * self.part - self.offset
        return min(max(begin, 0), self.numel), min(max(end, 0), self.numel)

    @property
    def here(self) -> tuple[int, int]:
        return self.range_on(self.rank)

    @property
    def start_in_part(self) -> int:
        """Where this rank's elements begin in its part."""
        return self.offset + self.here[0] - self.rank * self.part

    def local_piece(self, full: torch.Tensor) -> torch.Tensor:
        begin, end = self.here
        return full.reshape(-1)[begin:end]


def place_of(whole: torch.Tensor) -> Place:
    return Place(*_place_class.of(whole))


class LocalParameters(dict):
    """``module._parameters`` of a module with parameters that FullyShardedDataParallel has sharded.

    ``items()`` and ``values()`` give this rank's part of each, 1-D and possibly empty (``use_orig_params=True``), or
    leave them out, because a FlatParameter stands for them (``use_orig_params=False``). While ``shows_whole`` is set,
    they give whole parameters instead. ``[name]`` and ``module.__dict__[name]`` are whole parameters at all times.
    """

    def __init__(self, module: nn.Module) -> None:
        self._attributes = module.__dict__
        self.wholes: dict[str, nn.Parameter] = {}  # by name; one that another value replaces for a time stays here
        self._leaves: dict[str, torch.Tensor | None] = {}
        self.shows_whole = False
        super().__init__(module._parameters)

    def add(self, name: str, whole: nn.Parameter, leaf: torch.Tensor | None) -> None:
        """Lists ``leaf``, or nothing if it is None, in the place of a whole parameter."""
        self.wholes[name], self._leaves[name] = whole, leaf
        self[name] = whole

    def _is_own(self, name: str) -> bool:
        return name in self.wholes and self._attributes.get(name) is self.wholes[name]

    def __getitem__(self, name: str) -> Any:
        return self.wholes[name] if self._is_own(name) else dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        if value is not None and (value is self.wholes.get(name) or value is self._leaves.get(name)):
            leaf = self._leaves[name]
            if leaf is None:
                dict.pop(self, name, None)
            else:
                dict.__setitem__(self, name, leaf)
            self._attributes[name] = self.wholes[name]
            return
        self._attributes.pop(name, None)
        dict.__setitem__(self, name, value)

    def __delitem__(self, name: str) -> None:
        dict.__delitem__(self, name)
        self._attributes.pop(name, None)

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self and default:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def items(self) -> Any:
        return dict(self._listed()).items()

    def values(self) -> Any:
        return dict(self._listed()).values()

    def _listed(self) -> Iterator[tuple[str, Any]]:
        for name, value in super().items():
            if not self.shows_whole:
                yield name, value
            elif not getattr(value, "_is_flat_param", False):
                yield name, self[name]
        if self.shows_whole:
            for name, whole in self.wholes.items():
                if name not in self and self._is_own(name):
                    yield name, whole


def is_wrapped(module: nn.Module) -> bool:
    """Whether a module is a FullyShardedDataParallel."""
    return getattr(type(module), "is_fsdp_cpp_wrapper", False)


def wrapped_modules(module: nn.Module) -> list[Any]:
    """All FullyShardedDataParallel modules in a tree, ``module`` included."""
    return [one for one in module.modules() if is_wrapped(one)]


@dataclass
class Managed:
    """One registration of a parameter that a FullyShardedDataParallel module manages."""

    holder: LocalParameters
    name: str
    whole: nn.Parameter
    leaf: torch.Tensor  # with use_orig_params, this rank's part of it; else of its FlatParameter
    place: Place
    is_flat: bool

    @property
    def local(self) -> torch.Tensor:
        """This rank's elements, a 1-D view of the shard."""
        return self.local_piece_of(self.leaf.detach())

    def local_piece_of(self, like_leaf: torch.Tensor) -> torch.Tensor:
        if not self.is_flat:
            return like_leaf
        begin, end = self.place.here
        return like_leaf.narrow(0, min(self.place.start_in_part, self.place.part) if end > begin else 0, end - begin)


def show_local_parameters(module: nn.Module, use_orig_params: bool) -> list[Managed]:
    """Lists the parameters below ``module`` that the engine has just sharded as local ones. Returns them, with one
    entry for each name under which a parameter is registered."""
    managed = []
    for holder in module.modules():
        for name, whole in list(holder._parameters.items()):
            if whole is None or not _whole_class.is_whole(whole):
                continue
            if type(holder._parameters) is not LocalParameters:
                holder.__dict__["_parameters"] = LocalParameters(holder)
            leaf = _whole_class.leaf(whole) if use_orig_params else _place_class.flat_leaf(whole)
            leaf._is_param = True  # an nn.Parameter for isinstance
            _refuse_hooks(leaf, name)
            holder._parameters.add(name, whole, leaf if use_orig_params else None)
            place = place_of(whole)
            mark(leaf, place.rank, place.ranks)
            managed.append(Managed(holder._parameters, name, whole, leaf, place, not use_orig_params))
    if not use_orig_params:
        _register_flat_parameters(module, managed)
    return managed


def _refuse_hooks(leaf: torch.Tensor, name: str) -> None:
    """Refuses hooks on a local part: the engine writes its gradient, so that autograd would never call them."""

    def refusal(method: str) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(
                f"fsdp_cpp: {method} of a parameter under FullyShardedDataParallel (here {name}) would never call its "
                f"hook, because this rank's part of the gradient does not come from autograd. Register it on the "
                f"module's attribute, which is the whole parameter (module.{name.rpartition('.')[2]}.register_hook), "
                "or use fully_shard, whose parameters call register_post_accumulate_grad_hook"
            )

        return refuse

    for method in ("register_hook", "register_post_accumulate_grad_hook"):
        setattr(leaf, method, refusal(method))


def _register_flat_parameters(module: nn.Module, managed: list[Managed]) -> None:
    flat: dict[int, torch.Tensor] = {id(one.leaf): one.leaf for one in managed}
    if flat and type(module._parameters) is not LocalParameters:
        module.__dict__["_parameters"] = LocalParameters(module)
    for number, leaf in enumerate(flat.values(), start=1):
        leaf._is_flat_param = True  # a FlatParameter for isinstance
        module._parameters["_flat_param" if number == 1 else f"_flat_param_{number}"] = leaf

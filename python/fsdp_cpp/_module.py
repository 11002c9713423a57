"""The class of modules that fully_shard was called on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fsdp_cpp._conversion import apply_to_sharded, without_sharded_parameters
from fsdp_cpp._mirror import mirror_of

_KEY = "_fsdp_cpp_state"


@dataclass
class ModuleState:
    """What a module that fully_shard was called on knows about its sharding."""

    sharded: torch.ScriptObject | None  # the handle of its tree; None if nothing below it has parameters
    output_dtype: torch.dtype | None
    input_dtype: torch.dtype | None  # to which forward inputs are cast


def state_of(module: nn.Module) -> ModuleState:
    return module.__dict__[_KEY]


def is_annotated(module: nn.Module) -> bool:
    return _KEY in module.__dict__


class UnshardHandle:
    """A gather in flight, as ``FSDPModule.unshard(async_op=True)`` returns it."""

    def __init__(self, handle: torch.ScriptObject | None) -> None:
        self._handle = handle

    def wait(self) -> None:
        """Waits until the parameters are gathered. Further calls do nothing."""
        if self._handle is not None:
            self._handle.wait()
            self._handle = None


class FSDPModule:
    """The class that modules get from :func:`fully_shard`, before their own class: ``FSDPLinear(FSDPModule, Linear)``.

    Its methods are those of ``torch.distributed.fsdp.FSDPModule``. All ranks must make the same calls in the same
    order.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Indexing into a container makes a new container of the module's own class.
        own = cls.__mro__[2]
        module = own.__new__(own, *args, **kwargs)
        own.__init__(module, *args, **kwargs)
        return module

    # -- gathering --

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the parameters of this module's own unit, not of units below it.

        With ``async_op``, returns a handle at once; ``wait()`` on it, or the first operator that needs a parameter,
        waits for the gather. Otherwise waits and returns None.
        """
        sharded = _sharded(self)
        handle = UnshardHandle(sharded.unshard(mirror_of(self), async_op) if sharded is not None else None)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Releases the gathered parameters of this module's own unit, unless an operator is using them."""
        if (sharded := _sharded(self)) is not None:
            sharded.reshard(mirror_of(self))

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Gathers the units of ``modules``, in this order, when this module's unit is used in forward, in place of
        those that the order of the last step predicts. An empty list restores the prediction."""
        _check_modules(modules)
        _sharded(self).set_modules_to_forward_prefetch(mirror_of(self), [mirror_of(module) for module in modules])

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Like :meth:`set_modules_to_forward_prefetch`, in backward."""
        _check_modules(modules)
        _sharded(self).set_modules_to_backward_prefetch(mirror_of(self), [mirror_of(module) for module in modules])

    # -- gradients --

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Whether the end of the next backward waits for the reductions in flight, for the whole model. If not, a later
        backward does, or the first function that needs the gradients."""
        if (sharded := _sharded(self)) is not None:
            sharded.set_is_last_backward(is_last_backward)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divides gradients by ``factor`` instead of the number of ranks, for the whole model."""
        if (sharded := _sharded(self)) is not None:
            sharded.set_gradient_divide_factor(float(factor))

    def reset_iter_state(self) -> None:
        """Discards the gradients of a forward or backward that raised an exception, and releases all units."""
        if (sharded := _sharded(self)) is not None:
            sharded.reset()

    # -- conversions --

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        with without_sharded_parameters(self, recurse):
            super()._apply(fn, recurse)  # type: ignore[misc]
        apply_to_sharded(self, fn, recurse)
        return self


def _sharded(module: Any) -> Any:
    return state_of(module).sharded


def _check_modules(modules: Iterable[Any]) -> None:
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects FSDPModule but got {type(module)}: {module}")


def _refuse_deepcopy(self: Any, memo: Any) -> Any:
    raise AssertionError(
        "FSDP does not support deepcopy: a copy would share the shards' memory with the original. Build a second "
        "module, shard it, and load the first one's state dict"
    )


_classes: dict[type, type] = {}


def annotate_class(module: nn.Module, state: ModuleState) -> None:
    """Gives a module the class FSDP<its class> and its state."""
    own = type(module)
    annotated = _classes.get(own)
    if annotated is None:
        annotated = _classes[own] = type(f"FSDP{own.__name__}", (FSDPModule, own), {"__deepcopy__": _refuse_deepcopy})
    module.__class__ = annotated
    module.__dict__[_KEY] = state

"""The class of modules that fully_shard was called on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.distributed.fsdp import OffloadPolicy
from typing_extensions import deprecated

from fsdp_cpp._mirror import mirror_of
from fsdp_cpp._options import EngineOptions
from fsdp_cpp._tree import annotated_at, is_annotated, is_root, set_state, sharded_of, state_of

__all__ = ["FSDPModule", "ModuleState", "TreeArguments", "UnshardHandle", "annotate_class", "is_annotated", "state_of"]


# To type checkers, a sharded module is a module; it has its methods from its own class.
if TYPE_CHECKING:
    _Base = nn.Module
else:
    _Base = object


@dataclass(frozen=True)
class TreeArguments:
    """Arguments of fully_shard that must be the same for all units of a model."""

    mesh: tuple[str, ...]  # the names of its process groups
    offload_policy: OffloadPolicy
    engine_options: EngineOptions


@dataclass
class ModuleState:
    """What a module that fully_shard was called on knows about its sharding."""

    sharded: torch.ScriptObject | None  # the handle of its tree; None if nothing below it has parameters
    arguments: TreeArguments
    output_dtype: torch.dtype | None
    input_dtype: torch.dtype | None  # to which forward inputs are cast


class UnshardHandle:
    """A gather in flight, as ``FSDPModule.unshard(async_op=True)`` returns it."""

    def __init__(self, handle: torch.ScriptObject | None) -> None:
        self._handle = handle

    def wait(self) -> None:
        """Waits until the parameters are gathered. Further calls do nothing."""
        if self._handle is not None:
            self._handle.wait()
            self._handle = None


class FSDPModule(_Base):
    """The class that modules get from :func:`fully_shard`, before their own class: ``FSDPLinear(FSDPModule, Linear)``.

    Its methods are those of ``torch.distributed.fsdp.FSDPModule``. All ranks must make the same calls in the same
    order.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Indexing into a container calls the container's class: the new container is of the module's own class.
        own = type(self).__mro__[2]
        self.__class__ = own
        own.__init__(self, *args, **kwargs)

    # -- gathering --

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the parameters of this module's own unit, not of units below it.

        With ``async_op``, returns a handle at once; ``wait()`` on it, or the first operator that needs a parameter,
        waits for the gather. Otherwise waits and returns None.
        """
        sharded = sharded_of(self)
        handle = UnshardHandle(sharded.unshard(mirror_of(self), async_op) if sharded is not None else None)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Releases the gathered parameters of this module's own unit, unless an operator is using them."""
        if (sharded := sharded_of(self)) is not None:
            sharded.reshard(mirror_of(self))

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Gathers the units of ``modules``, in this order, when this module's unit is used in forward, in place of
        those that the order of the last step predicts. An empty list restores the prediction."""
        _check_modules(modules)
        if (sharded := sharded_of(self)) is not None:
            sharded.set_modules_to_forward_prefetch(mirror_of(self), _mirrors_of_units(modules))

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Like :meth:`set_modules_to_forward_prefetch`, in backward."""
        _check_modules(modules)
        if (sharded := sharded_of(self)) is not None:
            sharded.set_modules_to_backward_prefetch(mirror_of(self), _mirrors_of_units(modules))

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether parameters are released after forward, from the next forward on, in the place of fully_shard's
        argument: of this module's unit and, with ``recurse``, of all units below it."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        for sharded, modules in _units_at(self, recurse):
            sharded.set_reshard_after_forward(modules, reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether parameters are released after backward. If not, the next forward gathers them again only if the
        shards were written since, as by a step of an optimizer."""
        for sharded, modules in _units_at(self, recurse):
            sharded.set_reshard_after_backward(modules, bool(reshard_after_backward))

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Whether backward gathers this module's unit ahead of its use. An operator of backward that needs one of its
        parameters gathers it in any case."""
        for sharded, modules in _units_at(self, recurse=False):
            sharded.set_unshard_in_backward(modules, bool(unshard_in_backward))

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Does nothing: gathers are always issued without waiting for them."""

    def set_post_optim_event(self, event: torch.Event) -> None:
        """Lets the gathers of the next step wait for ``event``, which is recorded after the optimizer's step. Needed if
        the optimizer works on another stream than the current one. Later work of the current stream waits as well."""
        if event.device.type != "cpu":
            torch.accelerator.current_stream(event.device).wait_event(event)

    # -- gradients --

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward reduces gradients. If not, each rank adds up its own, unsharded and without communication,
        until a backward that does. Of this module's unit and, with ``recurse``, of all units below it."""
        for sharded, modules in _units_at(self, recurse):
            sharded.set_requires_gradient_sync(modules, bool(requires_gradient_sync))

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """On a mesh of two dimensions: whether backward also sums the reduced gradients over the replicas. If not, they
        are added up in the shard group until a backward that does."""
        for sharded, modules in _units_at(self, recurse):
            sharded.set_requires_all_reduce(modules, bool(requires_all_reduce))

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Whether the end of the next backward waits for the reductions in flight, for the whole model. If not, a later
        backward does, or the first function that needs the gradients."""
        if (sharded := sharded_of(self)) is not None:
            sharded.set_is_last_backward(bool(is_last_backward))

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divides the sum over the ranks of the gradients of this module's own unit by ``factor`` instead of the number
        of ranks."""
        for sharded, modules in _units_at(self, recurse=False):
            sharded.set_gradient_divide_factor(modules, float(factor))

    @deprecated("Use `set_gradient_divide_factor` instead", category=FutureWarning)
    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of :meth:`set_gradient_divide_factor`."""
        self.set_gradient_divide_factor(factor)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Does nothing: reductions are sums in any case, with a factor before or after them."""

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """Does nothing: a parameter that some ranks have not used is reduced with zeros from them in any case. One that
        no rank has used keeps the gradient None, as in one process."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """Checks its argument: two gradients are in flight at a time.

        Raises:
            NotImplementedError: ``max_input_buffers`` is 1.
        """
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, got {type(max_input_buffers).__name__}")
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")
        if max_input_buffers == 1:
            _refuse("set_reduce_scatter_max_input_buffers(1)", "two buffers of gradients are always in use")

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Checks that reductions have, or have not, a communicator of their own. They have one, unless
        ``EngineOptions(one_communicator=True)`` was passed to fully_shard.

        Raises:
            NotImplementedError: it is not as asked for; communicators are made when the model is sharded.
        """
        for module in annotated_at(self, recurse):
            if state_of(module).arguments.engine_options.one_communicator == bool(enable):
                _refuse(
                    f"set_separate_reduce_scatter_group({bool(enable)}) after sharding",
                    f"pass engine_options=EngineOptions(one_communicator={not enable}) to fully_shard",
                )

    def reset_iter_state(self) -> None:
        """Discards the gradients of a forward or backward that raised an exception, those that were accumulated without
        communication, and releases all units. Call it on the root.

        Raises:
            RuntimeError: an outer module of the same model is sharded as well.
        """
        if not is_root(self):
            raise RuntimeError("reset_iter_state must be called on the root FSDP module")
        if (sharded := sharded_of(self)) is not None:
            sharded.reset()

    # -- methods of PyTorch's class that this engine does not have --

    def set_custom_all_gather(self, comm: Any) -> None:
        """Not supported."""
        _refuse("set_custom_all_gather", _OWN_COLLECTIVES)

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """Not supported."""
        _refuse("set_custom_reduce_scatter", _OWN_COLLECTIVES)

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *, stream: Any = None) -> None:
        """Not supported."""
        _refuse("set_all_reduce_hook", "a mesh of two dimensions sums gradients over replicas")

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Not supported, except with False, the default."""
        if enable:
            _refuse("set_allocate_memory_from_process_group_for_comm", _OWN_COLLECTIVES)

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Not supported."""
        _refuse("set_symm_mem_for_comm", _OWN_COLLECTIVES)

    def _get_fsdp_state(self) -> NoReturn:
        _refuse("FSDPModule._get_fsdp_state", "the state of a unit is the engine's, not in Python")


# Why FSDPModule refuses to change how ranks exchange data.
_OWN_COLLECTIVES = "the engine exchanges data by its own collectives, not by those of a process group"


def _refuse(what: str, why: str) -> NoReturn:
    raise NotImplementedError(f"fsdp_cpp: {what} is not supported: {why}")


def _units_at(module: Any, recurse: bool) -> list[tuple[torch.ScriptObject, list[torch.ScriptObject]]]:
    """The mirrors of annotated modules with parameters, the module and with ``recurse`` those below it, by tree: each
    tree's handle and its modules."""
    trees: dict[int, tuple[torch.ScriptObject, list[torch.ScriptObject]]] = {}
    for one in annotated_at(module, recurse):
        sharded = sharded_of(one)
        trees.setdefault(sharded.identity(), (sharded, []))[1].append(mirror_of(one))
    return list(trees.values())


def _mirrors_of_units(modules: Iterable[Any]) -> list[torch.ScriptObject]:
    return [mirror_of(module) for module in modules if sharded_of(module) is not None]


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
    set_state(module, state)

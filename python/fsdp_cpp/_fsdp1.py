"""FullyShardedDataParallel: the class of torch.distributed.fsdp, on this engine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp._wrap_utils import _auto_wrap
from torch.distributed.utils import _apply_to_tensors

from fsdp_cpp import _fsdp1_clipping, _fsdp1_dcp, _fsdp1_state_dict
from fsdp_cpp._casts import _cast
from fsdp_cpp._fsdp1_checks import (
    check_not_container,
    check_nothing_wrapped,
    check_optimizers_in_backward,
    check_same_arguments,
    strategy_for,
)
from fsdp_cpp._fsdp1_optimizer_legacy import LegacyOptimizerStates
from fsdp_cpp._fsdp1_options import HYBRID, device_for, give_memory, groups_of, ignored_by, options_of
from fsdp_cpp._fsdp1_parameters import LocalParameters, show_local_parameters, wrapped_modules
from fsdp_cpp._fsdp1_state_dicts import StateDicts
from fsdp_cpp._fsdp1_summon import WholeParameters
from fsdp_cpp._mirror import annotate, build_mirror

_sharded_class = torch.classes.fsdp_cpp.Sharded


class FullyShardedDataParallel(LegacyOptimizerStates, StateDicts, WholeParameters):
    """Wraps a module and shards its parameters: ``torch.distributed.fsdp.FullyShardedDataParallel`` on this engine.

    All parameters below ``module`` that no inner FullyShardedDataParallel manages form one unit, which is flattened,
    padded and cut into equal parts. ``parameters()`` lists this rank's part of each parameter, 1-D and possibly empty
    (``use_orig_params=True``), or one FlatParameter for the unit. ``module.weight`` is whole and gathered on use, in
    forward or anywhere else.

    Args:
        module: the module to wrap.
        process_group: the ranks; for hybrid strategies ``(shard, replicate)``. None: all ranks of the job.
        sharding_strategy: what is sharded, and whether units are released after forward. Default: FULL_SHARD.
        cpu_offload: whether shards and their gradients live in host memory.
        auto_wrap_policy: chooses modules below that become units of their own: as torch.distributed.fsdp.wrap.
        backward_prefetch: when backward gathers the next unit; None: when it is used.
        mixed_precision: dtypes of computation, reduction and buffers.
        ignored_modules: modules whose parameters are left as they are.
        param_init_fn: gives memory and values to a module that holds meta tensors. None: ``reset_parameters()`` does.
        device_id: the device of computation. None: the device of the parameters.
        sync_module_states: whether all ranks take the values of rank 0.
        forward_prefetch: whether forward gathers the next unit ahead.
        limit_all_gathers: whether the number of units gathered ahead is limited.
        use_orig_params: see above.
        ignored_states: parameters, or modules, that are left as they are.
        device_mesh: the ranks as a mesh of one dimension, or of two for hybrid strategies.

    Raises:
        ValueError: arguments contradict one another.
        NotImplementedError: an argument asks for something that this engine does not do; the message names it.
    """

    is_fsdp_cpp_wrapper = True

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: CPUOffload | None = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Iterable[nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        device_id: int | torch.device | None = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Any = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        check_not_container(module)
        strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        modules, parameters = ignored_by(module, ignored_modules, ignored_states)
        groups = groups_of(process_group, device_mesh, strategy, auto_wrap_policy is not None)
        if auto_wrap_policy is not None:
            check_nothing_wrapped(module, FullyShardedDataParallel)
            inner_group = groups if strategy in HYBRID and device_mesh is None else process_group
            arguments = dict(
                process_group=inner_group,
                sharding_strategy=sharding_strategy,
                cpu_offload=cpu_offload,
                backward_prefetch=backward_prefetch,
                mixed_precision=mixed_precision,
                param_init_fn=param_init_fn,
                device_id=device_id,
                sync_module_states=sync_module_states,
                forward_prefetch=forward_prefetch,
                limit_all_gathers=limit_all_gathers,
                use_orig_params=use_orig_params,
                ignored_states=parameters,
                device_mesh=device_mesh,
            )
            _auto_wrap(module, auto_wrap_policy, modules, parameters, arguments, FullyShardedDataParallel)
        strategy = strategy_for(sharding_strategy, groups[0]) if groups[1] is None else strategy
        device = device_for(device_id, module)
        give_memory(module, modules, device, param_init_fn)
        self.process_group, self._replicate_group = groups
        self.rank, self.world_size = self.process_group.rank(), self.process_group.size()
        self.compute_device = device
        self.sharding_strategy = strategy
        self.mixed_precision = mixed_precision or MixedPrecision()
        self.cpu_offload = cpu_offload or CPUOffload()
        self.backward_prefetch = backward_prefetch
        self.forward_prefetch = forward_prefetch
        self.limit_all_gathers = limit_all_gathers
        self._use_full_prec_in_eval = os.environ.get("FSDP_USE_FULL_PREC_IN_EVAL") == "1"
        self._evaluates_in_full_precision = False
        self._began = False
        self._synchronizes = True
        self._device_mesh = device_mesh
        self._use_orig_params = use_orig_params
        self._has_parent = False
        self._ignored_params = parameters
        options = options_of(
            groups,
            device,
            strategy,
            self.cpu_offload,
            backward_prefetch,
            self.mixed_precision,
            forward_prefetch,
            limit_all_gathers,
            use_orig_params,
            sync_module_states,
            parameters,
        )
        self._shard(module, options)
        self._fsdp_wrapped_module = module
        _fsdp1_state_dict.initialize(self)
        _fsdp1_dcp.name_flat_parameters(self)
        _fsdp1_dcp.install(FullyShardedDataParallel)

    def _shard(self, module: nn.Module, options: torch.ScriptObject) -> None:
        inner = FullyShardedDataParallel.fsdp_modules(module)
        check_same_arguments(self, inner)
        self._sharded: torch.ScriptObject | None = None
        if isinstance(module, FullyShardedDataParallel):  # everything below is sharded, by the very module
            self._mirror, self._sharded, self._managed = module._mirror, module._sharded, []
        else:
            self._mirror = build_mirror(module)
            if inner or any(parameter not in self._ignored_params for parameter in module.parameters()):
                self._sharded = _sharded_class.fully_shard([self._mirror], options)
                annotate(module, self._mirror)
            self._managed = show_local_parameters(module, self._use_orig_params)
        for one in inner:
            one._has_parent = True

    # -- the wrapped module --

    @property
    def module(self) -> nn.Module:
        """The wrapped module, without a wrapper for activation checkpoints."""
        return getattr(self._fsdp_wrapped_module, "_checkpoint_wrapped_module", self._fsdp_wrapped_module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_fsdp_wrapped_module":
                raise
            return getattr(self._fsdp_wrapped_module, name)

    def __getitem__(self, key: Any) -> Any:
        return self._fsdp_wrapped_module[key]  # type: ignore[index]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped module, with floating-point arguments cast as mixed_precision says."""
        policy = self.mixed_precision
        if not self._has_parent:
            self._begin_forward()
        casts = policy.cast_forward_inputs or (policy.cast_root_forward_inputs and not self._has_parent)
        if casts and policy.param_dtype is not None and not self._in_full_precision():
            cast = functools.partial(_cast, policy.param_dtype)
            args, kwargs = _apply_to_tensors(cast, args), _apply_to_tensors(cast, kwargs)
        return self._fsdp_wrapped_module(*args, **kwargs)

    def _begin_forward(self) -> None:
        """Checks the tree before its first forward; follows train() and eval() where their dtypes differ."""
        if not self._began:
            check_optimizers_in_backward(self.fsdp_modules(self))
            self._began = True
        wanted = self._use_full_prec_in_eval and not self.training
        if wanted != self._evaluates_in_full_precision and self._sharded is not None:
            self._sharded.set_full_precision(wanted)
            for state in self.fsdp_modules(self):
                state._evaluates_in_full_precision = wanted

    def _in_full_precision(self) -> bool:
        return self._evaluates_in_full_precision

    def check_is_root(self) -> bool:
        """Whether no other FullyShardedDataParallel contains this one."""
        return not self._has_parent

    @staticmethod
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[FullyShardedDataParallel]:
        """All FullyShardedDataParallel modules in a tree, ``module`` included, or only those that are roots."""
        found = wrapped_modules(module)
        return [one for one in found if one.check_is_root()] if root_only else found

    # -- gradients --

    @contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        """Backward passes inside accumulate gradients without communication. Only for the root."""
        self._check_root("no_sync()", "is not supported. Please call `no_sync()` on root FSDP module.")
        before = self._synchronizes
        self._set_synchronization(False)
        try:
            yield
        finally:
            self._set_synchronization(before)

    def _set_synchronization(self, on: bool) -> None:
        self._synchronizes = on
        if self._sharded is not None:
            self._sharded.set_tree_requires_gradient_sync(on)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales all gradients so that their norm over all ranks is at most ``max_norm``. Returns the norm before.
        Only for the root. Collective."""
        self._check_root("clip_grad_norm_()", "should only be called on the root FSDP instance")
        return _fsdp1_clipping.clip_grad_norm_(self, self.fsdp_modules(self), max_norm, norm_type)

    def _check_root(self, function: str, sentence: str) -> None:
        if self._has_parent:
            raise RuntimeError(f"`{function}` on inner FSDP instances {sentence}")

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Refused: the engine performs reductions itself."""
        raise NotImplementedError(
            "fsdp_cpp: FullyShardedDataParallel.register_comm_hook is not supported; mixed_precision=MixedPrecision("
            "reduce_dtype=torch.bfloat16) reduces in half the bytes"
        )

    # -- conversions --

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        listed: list[tuple[nn.Module, LocalParameters]] = []
        for below in self.modules() if recurse else [self]:
            if type(below._parameters) is LocalParameters:
                listed.append((below, below._parameters))
        for leaf in {id(p): p for _, holder in listed for p in dict.values(holder) if p is not None}.values():
            with torch.no_grad():
                _take(leaf, fn(leaf))
        for below, _ in listed:
            below.__dict__["_parameters"] = {}
        try:
            return super()._apply(fn, recurse)
        finally:
            for below, holder in listed:
                below.__dict__["_parameters"] = holder


def _take(leaf: torch.Tensor, applied: torch.Tensor) -> None:
    if applied.dtype != leaf.dtype or applied.device != leaf.device:
        raise NotImplementedError(
            f"fsdp_cpp: FullyShardedDataParallel: a change of parameters from {leaf.dtype} on {leaf.device} to "
            f"{applied.dtype} on {applied.device}; convert the module before it is wrapped, or pass mixed_precision"
        )
    if applied is not leaf:
        leaf.copy_(applied)

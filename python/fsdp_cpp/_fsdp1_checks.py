"""Checks of FullyShardedDataParallel: of arguments, of modules that contain one another, and before forward."""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import ShardingStrategy

# Arguments that all units of a model must have in common, by the names of PyTorch's messages.
_HOMOGENEOUS = ("_use_orig_params", "limit_all_gathers", "_use_full_prec_in_eval")


def check_not_container(module: nn.Module) -> None:
    """Warns of modules without a forward of their own."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        warnings.warn(
            "FSDP will not all-gather parameters for containers that do not implement forward: "
            f"{module} (fsdp_cpp gathers them on use all the same)",
            stacklevel=3,
        )


def check_nothing_wrapped(module: nn.Module, wrapper: type[nn.Module]) -> None:
    """Refuses a module that auto_wrap_policy could not wrap from the bottom up."""
    for name, below in module.named_modules():
        if isinstance(below, wrapper):
            raise ValueError(
                f"FSDP auto wrapping requires modules to not already have FSDP applied but found {name} in\n{module}"
            )


def strategy_for(strategy: ShardingStrategy | None, process_group: dist.ProcessGroup) -> ShardingStrategy:
    """The strategy that is used: over one rank, nothing is sharded."""
    chosen = strategy or ShardingStrategy.FULL_SHARD
    if process_group.size() > 1 or chosen is ShardingStrategy.NO_SHARD:
        return chosen
    warnings.warn(f"FSDP is switching to use `NO_SHARD` instead of {chosen} since the world size is 1.", stacklevel=3)
    return ShardingStrategy.NO_SHARD


def check_same_arguments(state: Any, inner: list[Any]) -> None:
    """Refuses arguments of a module that differ from those of modules below it but must not."""
    for name in _HOMOGENEOUS:
        values = {getattr(one, name) for one in [state, *inner]}
        if len(values) > 1:
            raise ValueError(f"Expects one homogeneous value for {name} but got {values}")
    for one in inner:
        if _ranks(one) != _ranks(state):
            raise NotImplementedError(
                "fsdp_cpp: FullyShardedDataParallel: modules of one model over different process groups (ranks "
                f"{_ranks(one)} below ranks {_ranks(state)}) are not supported; leave the inner ones to ignored_states "
                "and reduce their gradients yourself"
            )


def _ranks(state: Any) -> tuple[tuple[int, ...], ...]:
    groups = [state.process_group, state._replicate_group]
    return tuple(tuple(dist.get_process_group_ranks(group)) for group in groups if group is not None)


def check_optimizers_in_backward(states: list[Any]) -> None:
    """Refuses optimizers that torch would step inside backward, from hooks that sharded parameters do not call."""
    for state in states:
        for one in state._managed:
            if hasattr(one.leaf, "_in_backward_optimizers"):
                raise NotImplementedError(
                    "fsdp_cpp: FullyShardedDataParallel: _apply_optimizer_in_backward is not supported (PyTorch: only "
                    "supported with use_orig_params=True); fully_shard calls the hooks of "
                    "parameter.register_post_accumulate_grad_hook when it has reduced the gradient"
                )

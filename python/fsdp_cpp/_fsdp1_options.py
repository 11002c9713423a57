"""Arguments of FullyShardedDataParallel as options of the library."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy

_classes = torch.classes.fsdp_cpp

HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
_STRATEGIES = {
    ShardingStrategy.FULL_SHARD: "FULL_SHARD",
    ShardingStrategy.SHARD_GRAD_OP: "SHARD_GRAD_OP",
    ShardingStrategy.NO_SHARD: "NO_SHARD",
    ShardingStrategy.HYBRID_SHARD: "HYBRID_SHARD",
    ShardingStrategy._HYBRID_SHARD_ZERO2: "HYBRID_SHARD_ZERO2",
}


def groups_of(
    process_group: Any, mesh: DeviceMesh | None, strategy: ShardingStrategy, has_policy: bool
) -> tuple[dist.ProcessGroup, dist.ProcessGroup | None]:
    """The group that shards, and the group that replicates (None unless the strategy is hybrid)."""
    if process_group is not None and mesh is not None:
        raise ValueError(
            "Cannot pass both process_group and device_mesh at the same time. Please just pass only one of them."
        )
    if strategy not in HYBRID:
        if mesh is not None:
            return mesh.get_group(mesh_dim=0), None
        return process_group if process_group is not None else dist.group.WORLD, None
    if mesh is not None:
        if mesh.ndim != 2:
            raise ValueError(f"Expected device_mesh to have ndim=2 but got {mesh.ndim}")
        return mesh.get_group(mesh_dim=1), mesh.get_group(mesh_dim=0)
    if process_group is None:
        if not has_policy:
            raise ValueError(
                f"Manual wrapping with {strategy} requires explicit specification of process group or device_mesh."
            )
        raise NotImplementedError(
            f"fsdp_cpp: FullyShardedDataParallel: {strategy} without process groups; pass process_group=(shard, "
            "replicate) or a device_mesh of two dimensions"
        )
    if not (isinstance(process_group, tuple) and len(process_group) == 2):
        raise ValueError(
            "Expected process_group to be passed in as either None or Tuple[dist.ProcessGroup, dist.ProcessGroup] but "
            f"got {type(process_group)}"
        )
    return process_group


def device_for(device_id: int | torch.device | None, module: nn.Module) -> torch.device:
    """The device on which the module computes: device_id, or that of its parameters, or the accelerator in use."""
    if device_id is not None:
        device = torch.device(device_id) if not isinstance(device_id, int) else torch.device("cuda", device_id)
        if device.type != "cpu" and device.index is None:
            device = torch.device(device.type, torch.accelerator.current_device_index())
        return device
    for parameter in module.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    if torch.accelerator.is_available():
        return torch.device(torch.accelerator.current_accelerator().type, torch.accelerator.current_device_index())
    return torch.device("cpu")


def ignored_by(
    module: nn.Module, ignored_modules: Iterable[nn.Module] | None, ignored_states: Iterable[Any] | None
) -> tuple[set[nn.Module], set[nn.Parameter]]:
    """The modules and parameters that are not sharded."""
    if ignored_modules is not None and ignored_states is not None:
        raise ValueError(
            "Cannot pass both ignored_modules and ignored_states at the same time. Please just pass ignored_states."
        )
    states = list(ignored_states or ignored_modules or ())
    if len({isinstance(state, nn.Parameter) for state in states}) > 1:
        raise ValueError("ignored_states expects all nn.Parameter or all nn.Module list elements")
    roots = [state for state in states if isinstance(state, nn.Module)]
    parameters = {state for state in states if isinstance(state, nn.Parameter)}
    if len(roots) + len(parameters) < len(set(states)):
        raise TypeError("ignored_states expects nn.Parameters or nn.Modules")
    if module in roots:
        raise ValueError("Trying to ignore the top-level module passed into the FSDP constructor itself")
    modules = {below for root in roots for below in root.modules()}
    return modules, parameters | {parameter for root in roots for parameter in root.parameters()}


def options_of(
    groups: tuple[dist.ProcessGroup, dist.ProcessGroup | None],
    device: torch.device,
    strategy: ShardingStrategy,
    cpu_offload: CPUOffload,
    backward_prefetch: BackwardPrefetch | None,
    mixed_precision: MixedPrecision,
    forward_prefetch: bool,
    limit_all_gathers: bool,
    use_orig_params: bool,
    sync_module_states: bool,
    ignored: set[nn.Parameter],
) -> torch.ScriptObject:
    options = _classes.Options()
    shard, replicate = groups
    if replicate is None:
        options.set_group(_communicator(shard, device))
    else:
        options.set_mesh(None, _communicator(shard, device), _communicator(replicate, device))
    options.set_strategy(_STRATEGIES[strategy])
    options.set_device(device)
    # Inputs are cast where PyTorch casts them, in the module's forward, and not again at each operator.
    options.set_mixed_precision(
        mixed_precision.param_dtype,
        mixed_precision.reduce_dtype,
        mixed_precision.buffer_dtype,
        False,
        mixed_precision.keep_low_precision_grads,
    )
    options.set_offload(cpu_offload.offload_params, None)
    options.set_layout(use_orig_params, False)
    options.set_initialization(sync_module_states)
    options.ignore(list(ignored))
    prefetch = backward_prefetch.name if backward_prefetch is not None else "none"
    options.set_overlap(prefetch, forward_prefetch, limit_all_gathers, 2, False)
    return options


def _communicator(process_group: dist.ProcessGroup, device: torch.device) -> torch.ScriptObject:
    alone = dist.get_world_size(process_group) == 1 or dist.get_backend(process_group) == "fake"
    _classes.Group.forget(False)
    return _classes.Group.of(
        process_group.group_name,
        "fake" if alone else "auto",
        device,
        os.environ.get("GLOO_SOCKET_IFNAME", ""),
        os.environ.get("MASTER_ADDR", ""),
    )


def give_memory(module: nn.Module, ignored: set[nn.Module], device: torch.device, param_init_fn: Any) -> None:
    """Gives memory and values to modules below ``module`` that hold meta tensors: by ``param_init_fn(module)``, or by
    their own ``reset_parameters()``."""
    for below in module.modules():
        own = [*below.parameters(recurse=False), *below.buffers(recurse=False)]
        if below in ignored or not any(tensor.is_meta for tensor in own):
            continue
        if param_init_fn is not None:
            param_init_fn(below)
            continue
        below.to_empty(device=device, recurse=False)
        if not hasattr(below, "reset_parameters"):
            raise RuntimeError(
                f"Unable to call `reset_parameters()` for module on meta device with error: {type(below).__name__} has "
                "no such method. Please ensure that your module implements it, or pass param_init_fn"
            )
        with torch.no_grad():
            below.reset_parameters()

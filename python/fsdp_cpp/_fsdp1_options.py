"""Arguments of FullyShardedDataParallel as options of the library."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy

from fsdp_cpp._options import default_device_type

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
        if isinstance(process_group, tuple):
            raise ValueError(f"fsdp_cpp: FullyShardedDataParallel: {strategy} takes one process group, not a tuple")
        if mesh is not None:
            if mesh.ndim != 1:
                raise ValueError(
                    f"fsdp_cpp: FullyShardedDataParallel: {strategy} shards over a mesh of one dimension, not of "
                    f"{mesh.ndim}; pass mesh['name of a dimension'], or choose HYBRID_SHARD"
                )
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
        return _groups_of_hosts()
    if not (isinstance(process_group, tuple) and len(process_group) == 2):
        raise ValueError(
            "Expected process_group to be passed in as either None or Tuple[dist.ProcessGroup, dist.ProcessGroup] but "
            f"got {type(process_group)}"
        )
    return process_group


def _groups_of_hosts() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """The ranks of this rank's host, and the ranks with its place on all hosts. Collective."""
    accelerator = torch.accelerator.is_available() and default_device_type() != "cpu"
    ranks = dist.get_world_size()
    on_host = torch.accelerator.device_count() if accelerator else int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    on_host = min(on_host, ranks)
    shard, _ = dist.new_subgroups(on_host)
    replicate, _ = dist.new_subgroups_by_enumeration([list(range(i, ranks, on_host)) for i in range(on_host)])
    return shard, replicate


def device_for(device_id: int | torch.device | None, module: nn.Module) -> torch.device:
    """The device on which the module computes: device_id, or that of its parameters, or the accelerator in use.

    A number is an accelerator's index; after ``install(cpu=True)`` it means the CPU.
    """
    if device_id is not None:
        device = torch.device(device_id) if not isinstance(device_id, int) else _device_of_index(device_id)
        if device.type == "cpu":
            return torch.device("cpu")  # accelerate says "cpu:0", which is another device to transformers
        if device.index is None:
            device = torch.device(device.type, torch.accelerator.current_device_index())
        return device
    for parameter in module.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    if torch.accelerator.is_available():
        return torch.device(torch.accelerator.current_accelerator().type, torch.accelerator.current_device_index())
    return torch.device("cpu")


def _device_of_index(index: int) -> torch.device:
    if default_device_type() == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        raise ValueError(
            f"fsdp_cpp: FullyShardedDataParallel: device_id={index} is an accelerator's index, and there is no "
            'accelerator; pass device_id=torch.device("cpu")'
        )
    return torch.device(accelerator.type, index)


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
    if any(getattr(type(one), "is_fsdp_cpp_wrapper", False) for one in roots):
        raise ValueError("`ignored_modules` should not include FSDP modules")
    if module in roots:
        warnings.warn(
            "Trying to ignore the top-level module passed into the FSDP constructor itself will result in all "
            f"parameters being ignored and is not well-supported: {module}",
            stacklevel=3,
        )
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
            if not callable(param_init_fn):
                raise ValueError(f"Expected {param_init_fn} to be callable but got {type(param_init_fn)}")
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

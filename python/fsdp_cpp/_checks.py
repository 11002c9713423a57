"""Checks of the arguments of fully_shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor, Shard

from fsdp_cpp._sharded_parameter import ShardedParameter
from fsdp_cpp._tensor_parallel import check_split
from fsdp_cpp._tree import is_annotated, sharded_of, state_of

PlacementFunction = Callable[[nn.Parameter], Any]


def check_modules(modules: list[nn.Module]) -> None:
    if not modules:
        raise ValueError("fully_shard was called with an empty list of modules")
    for module in modules:
        if not isinstance(module, nn.Module):
            raise ValueError(f"fully_shard expects a module or a list of modules but got {type(module).__name__}")
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
            raise ValueError(f"fully_shard does not support containers that do not implement forward: {module}")
        if is_annotated(module):
            raise AssertionError(f"fully_shard was called on {type(module).__name__} before")


def check_parameters(
    modules: list[nn.Module], placement: PlacementFunction | None, ignored: set[nn.Parameter] | None, mesh: DeviceMesh
) -> dict[nn.Parameter, int]:
    """Checks the parameters to shard. Returns the dimensions in which they are cut, where that is not the first one."""
    shard_dims: dict[nn.Parameter, int] = {}
    for name, parameter in _parameters_to_shard(modules, ignored):
        if parameter.dim() == 0:
            raise ValueError(
                f"fully_shard doesn't support scalar parameters. Change {name} to a 1D tensor with numel equal to 1."
            )
        if isinstance(parameter, DTensor):
            check_split(name, parameter, mesh)
        elif not parameter.is_contiguous():
            raise NotImplementedError(
                f"fsdp_cpp: fully_shard: parameter '{name}': FSDP does not support non-contiguous parameters yet: "
                f"{parameter.shape=} {parameter.stride()=}"
            )
        dim = _shard_dim(name, parameter, placement)
        if dim:
            shard_dims[parameter] = dim
    return shard_dims


def _parameters_to_shard(
    modules: list[nn.Module], ignored: set[nn.Parameter] | None
) -> Iterator[tuple[str, nn.Parameter]]:
    left_alone = {id(parameter) for parameter in ignored or ()}
    for module in modules:
        for name, parameter in module.named_parameters():
            if not isinstance(parameter, ShardedParameter) and id(parameter) not in left_alone:
                yield name, parameter


def _shard_dim(name: str, parameter: nn.Parameter, placement: PlacementFunction | None) -> int:
    wanted = placement(parameter) if placement is not None else None
    if wanted is None:
        return 0
    if hasattr(wanted, "mesh_info"):
        raise NotImplementedError(
            f"fsdp_cpp: fully_shard: shard_placement_fn asks for {wanted} of parameter '{name}'; only placements over "
            "the mesh of the call are supported"
        )
    if type(wanted) is not Shard:
        raise ValueError(f"Invalid shard_placement_fn result: {wanted} for parameter '{name}'")
    if not -parameter.dim() <= wanted.dim < parameter.dim():
        raise AssertionError(
            f"fsdp_cpp: fully_shard: parameter '{name}': Shard dim {wanted.dim} is invalid for {parameter.dim()}D "
            f"tensor: {parameter.shape}"
        )
    return wanted.dim % parameter.dim()


def check_not_supported(dp_mesh_dims: Any, offload_policy: OffloadPolicy) -> None:
    if dp_mesh_dims is not None:
        raise NotImplementedError(
            "fsdp_cpp: fully_shard: dp_mesh_dims is not supported, because it is for parameters that are DTensors; "
            "pass the data-parallel mesh"
        )
    if (
        isinstance(offload_policy, CPUOffloadPolicy)
        and not offload_policy.pin_memory
        and torch.accelerator.is_available()
    ):
        raise NotImplementedError(
            "fsdp_cpp: fully_shard: CPUOffloadPolicy(pin_memory=False) is not supported: offloaded shards are pinned"
        )


def check_mesh(mesh: DeviceMesh) -> None:
    if mesh.ndim not in (1, 2):
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        raise AssertionError("Please init the 2D mesh for HSDP with mesh_dim_names specified")


def check_same_arguments(modules: list[nn.Module], arguments: Any) -> None:
    """Refuses arguments other than those of the modules below that are sharded already: one engine has one of each."""
    for module in modules:
        for name, inner in module.named_modules():
            if not is_annotated(inner) or sharded_of(inner) is None:
                continue
            for field, value in vars(arguments).items():
                known = getattr(state_of(inner).arguments, field)
                if known != value:
                    raise NotImplementedError(
                        f"fsdp_cpp: fully_shard: module '{name}' was sharded with {field}={known}; another {field} for "
                        f"a module above it ({value}) is not supported"
                    )

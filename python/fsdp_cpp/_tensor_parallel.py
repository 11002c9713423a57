"""Parameters that torch's tensor parallelism has split before: DTensors over a mesh beside the one of fully_shard.

The engine shards each rank's local tensor over the ranks of fully_shard's mesh. The module computes with a DTensor
around the whole local tensor, as tensor parallelism made it; the optimizer sees a DTensor over both meshes, as FSDP2
makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

# The specs of split parameters by what the engine shards of them: a parameter that is this rank's local tensor.
_spec_of_local: WeakIdKeyDictionary = WeakIdKeyDictionary()


def split_spec(whole: torch.Tensor) -> DTensorSpec | None:
    """How tensor parallelism has split the parameter of which ``whole`` is this rank's local tensor; None if it is no
    such one."""
    return _spec_of_local.get(whole)


def check_split(name: str, parameter: DTensor, mesh: DeviceMesh) -> None:
    """Refuses a split parameter that cannot be sharded over ``mesh``."""
    for placement in parameter.placements:
        if not isinstance(placement, (Replicate, Shard)) or isinstance(placement, _StridedShard):
            raise NotImplementedError(
                f"fsdp_cpp: fully_shard: parameter '{name}' is a DTensor with the placements {parameter.placements}; "
                "Shard and Replicate are supported"
            )
    if parameter.device_mesh.ndim != 1:
        raise NotImplementedError(
            f"fsdp_cpp: fully_shard: parameter '{name}' is a DTensor over {parameter.device_mesh.ndim} dimensions of a "
            "mesh; one, that of tensor parallelism, is supported"
        )
    if not parameter._local_tensor.is_contiguous():
        raise NotImplementedError(
            f"fsdp_cpp: fully_shard: parameter '{name}': FSDP does not support non-contiguous parameters yet: its "
            f"local tensor has shape {tuple(parameter._local_tensor.shape)}, strides {parameter._local_tensor.stride()}"
        )
    own = parameter.device_mesh
    dimensions, own_dimensions = set(mesh.mesh_dim_names or ()), set(own.mesh_dim_names or ())
    are_of_one_mesh = dimensions and own_dimensions and mesh._get_root_mesh() == own._get_root_mesh()
    if not are_of_one_mesh or dimensions & own_dimensions:
        raise ValueError(
            f"fully_shard: parameter '{name}' is a DTensor over {own}, which is no dimension beside {mesh} in one "
            "mesh: name all dimensions in one init_device_mesh, and pass fully_shard those that parameters do not have"
        )


class LocalParts:
    """Puts this rank's local tensors in the places of split parameters, so that the engine can shard them, and puts the
    split ones back at the end unless :meth:`keep` was called."""

    def __init__(self, modules: list[nn.Module], ignored: set[nn.Parameter] | None) -> None:
        self._replaced: list[tuple[nn.Module, str, DTensor]] = []
        self._left_alone = {id(parameter) for parameter in ignored or ()}
        self._locals: dict[int, nn.Parameter] = {}  # by the split one: tied parameters stay tied
        for module in modules:
            for holder in module.modules():
                self._replace(holder)

    def _replace(self, holder: nn.Module) -> None:
        for name, parameter in _split_parameters(holder):
            if id(parameter) in self._left_alone:
                continue
            if id(parameter) not in self._locals:
                local = nn.Parameter(parameter._local_tensor.detach(), requires_grad=parameter.requires_grad)
                self._locals[id(parameter)] = local
                _spec_of_local[local] = parameter._spec
            self._replaced.append((holder, name, parameter))
            holder._parameters[name] = self._locals[id(parameter)]

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The local tensor of a split parameter; any other parameter itself."""
        return self._locals.get(id(parameter), parameter)

    def keep(self) -> None:
        """Keeps the local tensors, which the engine has taken over."""
        self._replaced.clear()

    def __enter__(self) -> LocalParts:
        return self

    def __exit__(self, *_: Any) -> None:
        for holder, name, parameter in self._replaced:
            holder._parameters[name] = parameter


def _split_parameters(holder: nn.Module) -> Iterator[tuple[str, DTensor]]:
    """Those of a module's own parameters that are plain DTensors, and so not sharded yet."""
    for name, parameter in list(dict.items(holder._parameters)):
        if type(parameter) is DTensor:
            yield name, parameter


def spec_over_both(mesh: DeviceMesh, split: DTensorSpec, dim: int) -> DTensorSpec:
    """How a split parameter lies over the ranks of ``mesh`` and of its own mesh once dimension ``dim`` is sharded over
    ``mesh``, as in FSDP2."""
    parts = split.num_shards_map[dim]
    slices: Placement = _StridedShard(dim, split_factor=parts) if parts > 1 else Shard(dim)
    placements = (*(Replicate(),) * (mesh.ndim - 1), slices, *split.placements)
    return DTensorSpec(_both(mesh, split.mesh), placements, tensor_meta=split.tensor_meta)


def _both(mesh: DeviceMesh, split: DeviceMesh) -> DeviceMesh:
    return DeviceMesh._concatenate([mesh, split])


def as_split(whole: torch.Tensor, split: DTensorSpec) -> DTensor:
    """The DTensor with which a module computes, around this rank's whole local tensor. Gradients flow to ``whole``."""
    used = _AsSplit.apply(whole, split)
    used._is_param = True  # an nn.Parameter for isinstance
    used._fsdp_cpp_whole = whole
    return used


class _AsSplit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole, split):  # type: ignore[override]
        ctx.split = split
        return DTensor(_Part(whole.detach()), split, requires_grad=whole.requires_grad)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[override]
        if gradient.placements != ctx.split.placements:
            gradient = gradient.redistribute(ctx.split.mesh, ctx.split.placements)
        return gradient._local_tensor, None


# The dispatch key of sharded parameters, by which the engine sees operators.
_ENGINE_KEY = torch._C._dispatch_key_parse("DeferredInit")


class _Part(torch.Tensor):
    """A whole local tensor, or a view of it, inside a DTensor.

    DTensor runs operators on local tensors where torch has left out the dispatch keys above Python's own, the engine's
    among them. This class lets the engine see them all the same, so that it gathers.
    """

    _tensor: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, tensor: torch.Tensor) -> _Part:
        part = torch.Tensor._make_wrapper_subclass(
            cls,
            tensor.shape,
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            device=tensor.device,
        )
        part._tensor = tensor
        return part

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        args, kwargs = tree_map_only(_Part, lambda part: part._tensor, (args, kwargs or {}))
        with torch._C._SetExcludeDispatchKeyGuard(_ENGINE_KEY, False):
            result = func(*args, **kwargs)
        return tree_map_only(torch.Tensor, _as_part, result)


def _as_part(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a sharded parameter as a part; any other tensor itself."""
    return _Part(tensor) if torch._C._dispatch_keys(tensor).has(_ENGINE_KEY) else tensor


def whole_behind(value: Any) -> Any:
    """The local tensor of which :func:`as_split` made ``value``; any other value itself."""
    return getattr(value, "_fsdp_cpp_whole", value) if type(value) is DTensor else value


def norms_over_parts(norms: torch.Tensor, specs: list[DTensorSpec | None], norm_type: float) -> torch.Tensor:
    """The norms of parameters, of which each rank has those of its own parts. Collective over the meshes of split ones.

    Args:
        norms: one for each parameter.
        specs: how tensor parallelism has split each; None: not.
    """
    meshes = {spec.mesh: None for spec in specs if spec is not None and spec.num_shards > 1}
    for mesh in meshes:
        places = [i for i, spec in enumerate(specs) if spec is not None and spec.num_shards > 1 and spec.mesh == mesh]
        parts = norms[places]
        if abs(norm_type) == float("inf"):
            extreme = dist.ReduceOp.MAX if norm_type > 0 else dist.ReduceOp.MIN
            dist.all_reduce(parts, extreme, group=mesh.get_group())
        else:  # of norm type 0, the numbers of elements that are not 0
            parts = parts**norm_type if norm_type else parts
            dist.all_reduce(parts, dist.ReduceOp.SUM, group=mesh.get_group())
            parts = parts ** (1 / norm_type) if norm_type else parts
        norms = norms.index_copy(0, torch.tensor(places, device=norms.device), parts)
    return norms

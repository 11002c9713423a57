"""torch.nn.utils.clip_grad_norm_, get_total_norm, clip_grads_with_norm_ and clip_grad_value_ for sharded parameters.

The number is that of these functions on DTensors (with three or more ranks, up to a rounding), and the result as well:
a replicated DTensor. The engine takes the norms of all parts in one call and combines those of all ranks in one
exchange, where DTensors dispatch operators one by one. Beyond DTensors' way, parts without rows have norms of all
orders, and a list may hold sharded and plain parameters together; the result is then a plain tensor.

The functions are wrapped where torch.nn.utils and torch.nn.utils.clip_grad look them up. A clip_grad_norm_ that was
imported by name earlier finds the wrapped functions below it. Lists without sharded parameters or their gradients take
the way that they take without this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.utils.clip_grad as torch_clip_grad
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils._foreach_utils import _device_has_foreach_support

from fsdp_cpp._sharded_parameter import ShardedParameter, parameter_cut_like
from fsdp_cpp._tensor_parallel import norms_over_parts, split_spec

_gradients = torch.classes.fsdp_cpp.Gradients
_settle, _norms_over_ranks = _gradients.settle, _gradients.norms


def install() -> None:
    """Wraps the functions of torch.nn.utils. Called once, when the package is imported."""
    for private, public, wrapper in (
        ("_get_total_norm", "get_total_norm", _total_norm),
        ("_clip_grads_with_norm_", "clip_grads_with_norm_", _clip_with_norm),
        ("clip_grad_norm_", "clip_grad_norm_", _clip_norm),
        ("clip_grad_value_", "clip_grad_value_", _clip_value),
    ):
        wrapped = wrapper(getattr(torch_clip_grad, private))
        setattr(torch_clip_grad, private, wrapped)
        setattr(torch.nn.utils, public, wrapped)


# -- the functions of torch.nn.utils --


def _total_norm(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def get_total_norm(
        tensors: torch.Tensor | Iterable[torch.Tensor],
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        parameters = [parameter_cut_like(tensor) for tensor in tensors]
        if torch.compiler.is_compiling() or not any(parameter is not None for parameter in parameters):
            return original(tensors, norm_type, error_if_nonfinite, foreach)
        gradients = Gradients()
        for tensor, parameter in zip(tensors, parameters, strict=True):
            gradients.add(tensor if parameter is None else tensor._local_tensor, parameter)
        return gradients.as_dtensor(gradients.norm(original, norm_type, error_if_nonfinite, foreach))

    return get_total_norm


def _clip_norm(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def clip_grad_norm_(
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        listed = _listed(parameters)
        if not _concerns(listed):
            # torch warns of an empty generator, so it gets the generator.
            return original(listed or parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        gradients = Gradients.of(listed)
        if not gradients.parts:
            return original([], max_norm, norm_type, error_if_nonfinite, foreach)
        norm = gradients.norm(torch_clip_grad._get_total_norm, norm_type, error_if_nonfinite, foreach)
        _scale(gradients, float(max_norm), norm, foreach)
        return gradients.as_dtensor(norm)

    return clip_grad_norm_


def _clip_with_norm(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def clip_grads_with_norm_(
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        total_norm: torch.Tensor,
        foreach: bool | None = None,
    ) -> None:
        listed = _listed(parameters)
        if not _concerns(listed):
            return original(listed, max_norm, total_norm, foreach)
        total_norm = total_norm.full_tensor() if isinstance(total_norm, DTensor) else total_norm
        return original(Gradients.of(listed).stand_ins(), max_norm, total_norm, foreach)

    return clip_grads_with_norm_


def _clip_value(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def clip_grad_value_(
        parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float, foreach: bool | None = None
    ) -> None:
        listed = _listed(parameters)
        if not _concerns(listed):
            return original(listed, clip_value, foreach)
        return original(Gradients.of(listed).stand_ins(), clip_value, foreach)

    return clip_grad_value_


def _listed(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _concerns(parameters: list[torch.Tensor]) -> bool:
    return not torch.compiler.is_compiling() and any(type(parameter) is ShardedParameter for parameter in parameters)


# -- gradients --


class Gradients:
    """Gradients of sharded and plain parameters. Those of sharded ones are this rank's parts, of any shape."""

    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []
        self.parameters: list[ShardedParameter | None] = []  # None: a plain gradient

    @staticmethod
    def of(parameters: list[torch.Tensor]) -> Gradients:
        """The gradients of those parameters that have one. Waits for reductions in flight."""
        gradients = Gradients()
        _settle([parameter.whole for parameter in parameters if type(parameter) is ShardedParameter])
        for parameter in parameters:
            if type(parameter) is not ShardedParameter:
                if parameter.grad is not None:
                    gradients.add(parameter.grad, None)
            elif (gradient := parameter.local_gradient()) is not None:
                gradients.parts.append(gradient)
                gradients.parameters.append(parameter)
        return gradients

    def add(self, part: torch.Tensor, parameter: ShardedParameter | None) -> None:
        if isinstance(part, DTensor):
            raise NotImplementedError(
                "fsdp_cpp: clipping gradients of sharded parameters together with gradients that are other DTensors, "
                f"here with the placements {part.placements}, is not supported"
            )
        self.parts.append(part)
        self.parameters.append(parameter)

    def norm(
        self, original: Callable[..., torch.Tensor], norm_type: float, error_if_nonfinite: bool, foreach: bool | None
    ) -> torch.Tensor:
        """The norm over all ranks, as a plain scalar. ``original``: torch's function for plain tensors. Collective."""
        norm_type = float(norm_type)
        self._check_foreach(foreach)
        sharded = [i for i, parameter in enumerate(self.parameters) if parameter is not None]
        plain = [i for i, parameter in enumerate(self.parameters) if parameter is None]
        with torch.no_grad():
            # The engine takes norms with foreach operators, whose results do not differ from those of others.
            norms = _norms_over_ranks(
                [self.parts[i] for i in sharded], [self.parameters[i].whole for i in sharded], norm_type
            )
            norms = norms_over_parts(norms, [split_spec(self.parameters[i].whole) for i in sharded], norm_type)
            if plain:
                others = original([self.parts[i] for i in plain], norm_type, False, foreach)
                norms = torch.cat([norms, others.to(norms.device).reshape(1)])
            total = torch.linalg.vector_norm(norms, norm_type)
        if error_if_nonfinite:
            original([total], norm_type, True, foreach)  # raises its error, if there is one
        return total

    def as_dtensor(self, norm: torch.Tensor) -> torch.Tensor:
        """The norm as DTensors' way gives it, if all gradients are sharded over one mesh; otherwise ``norm`` itself."""
        if any(parameter is None for parameter in self.parameters):
            return norm
        mesh = self.parameters[0]._spec.mesh
        if not all(parameter._spec.mesh is mesh or parameter._spec.mesh == mesh for parameter in self.parameters):
            return norm
        meta = TensorMeta(norm.shape, norm.stride(), norm.dtype)
        return DTensor(norm, DTensorSpec(mesh, (Replicate(),) * mesh.ndim, tensor_meta=meta), requires_grad=False)

    def stand_ins(self) -> list[Any]:
        """Stand-ins of the parameters, of which torch's functions read nothing but the gradient."""
        return [SimpleNamespace(grad=part) for part in self.parts]

    def _check_foreach(self, foreach: bool | None) -> None:
        for part in self.parts if foreach else ():
            if not _device_has_foreach_support(part.device):
                raise RuntimeError(f"fsdp_cpp: foreach=True, but no foreach operators exist on {part.device.type}")


def _scale(gradients: Gradients, max_norm: float, norm: torch.Tensor, foreach: bool | None) -> None:
    """Scales gradients as torch does. On CPUs, where reading the norm costs nothing, spares a multiplication by 1."""
    if norm.device.type == "cpu" and max_norm / (norm + 1e-6) >= 1:
        return
    torch_clip_grad._clip_grads_with_norm_(gradients.stand_ins(), max_norm, norm, foreach)

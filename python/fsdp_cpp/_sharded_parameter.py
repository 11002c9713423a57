"""A parameter as the optimizer sees it: a DTensor around this rank's rows."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils.weak import WeakIdKeyDictionary

from fsdp_cpp._gradient_hooks import call_hooks_when_reduced
from fsdp_cpp._sharded_view import Origin, ShardedView
from fsdp_cpp._tensor_parallel import as_split, spec_over_both, split_spec

_whole_class = torch.classes.fsdp_cpp.Whole
_is_gradient_stand_in = _whole_class.is_gradient_stand_in  # looked up once: that takes longer than a call


_native_grad = torch.Tensor.grad.__get__


class ShardedParameter(ShardedView):
    """This rank's part of a parameter, as ``module.parameters()``, state dicts and optimizers see it.

    A DTensor with the placements ``(Shard(0),)``, or ``(Replicate(), Shard(0))`` on a mesh of two dimensions, or
    another dimension in the place of the first (``shard_placement_fn``). Its local tensor and its gradient are those of
    the engine's leaf, so that a step of an optimizer is a step on the shard. The module itself uses the whole
    parameter, which the engine gathers when an operator needs it.

    Writes to it, through whichever view or list, are counted with the leaf's, so that no gathered copy goes stale.
    Its data cannot be replaced, only written.
    """

    # -- the two views of one parameter --

    @property
    def whole(self) -> nn.Parameter:
        """The parameter as the engine knows it: full shape, gathered on use. Of a parameter that tensor parallelism has
        split, this rank's local tensor."""
        return self.__dict__["_origin"].whole

    @property
    def used(self) -> torch.Tensor:
        """The parameter as the module computes with it: :attr:`whole`, or a DTensor around it."""
        whole = self.whole
        split = split_spec(whole)
        return whole if split is None else as_split(whole, split)

    @property
    def data(self) -> ShardedView:  # type: ignore[override]
        """This parameter without its history. Assignment is refused unless it changes nothing."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if isinstance(value, ShardedView) and value._local_tensor.is_set_to(self._local_tensor):
            return
        raise NotImplementedError(
            f"fsdp_cpp: parameter '{self.fqn}': .data cannot be replaced, because the engine owns the memory of the "
            "shards. Copy values with parameter.data.copy_(value); convert the model to other dtypes and devices "
            "before fully_shard"
        )

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the parameter is trained, in both views."""
        flag = self.whole.requires_grad
        if torch.Tensor.requires_grad.__get__(self) != flag:
            torch.Tensor.requires_grad.__set__(self, flag)
        return flag

    @requires_grad.setter
    def requires_grad(self, flag: bool) -> None:
        self.whole.requires_grad = flag
        torch.Tensor.requires_grad.__set__(self, flag)

    def requires_grad_(self, requires_grad: bool = True) -> ShardedParameter:
        """Sets :attr:`requires_grad` and returns the parameter."""
        self.requires_grad = requires_grad
        return self

    def detach_(self) -> ShardedParameter:  # type: ignore[override]
        """Freezes the parameter, as ``detach_`` does to a tensor without a history."""
        return self.requires_grad_(False)

    # -- parameters that were sharded on meta --

    def mark_without_values(self) -> None:
        """Lets this parameter, which has memory already, pass for one on the device meta until it is written to."""
        self.origin.version_without_values = self.leaf._version

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """Whether the parameter was sharded on the device meta, and no value has been written to it since."""
        return self.origin.version_without_values == self.leaf._version

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of this rank's part; meta as long as :attr:`is_meta`."""
        return torch.device("meta") if self.is_meta else self.leaf.device

    # -- gradient --

    @property
    def grad(self) -> DTensor | None:  # type: ignore[override]
        """The gradient of this rank's part: a view of the leaf's, or None.

        Assignment takes a DTensor or a whole tensor, of which each rank keeps its rows.
        """
        self._take_over_gradients()
        origin = self.__dict__["_origin"]
        gradient = origin.leaf.grad
        if gradient is None:
            origin.wrapped_grad = None
            return None
        known = origin.wrapped_grad
        if known is None or known[0] is not gradient:
            own = self._local_tensor
            local = gradient.as_strided(own.shape, own.stride())
            # DTensor's __init__ does nothing, at the price of the rest.
            wrapped = DTensor.__new__(DTensor, local, self._spec, requires_grad=False)
            known = origin.wrapped_grad = (gradient, wrapped)
        return known[1]

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if value is not None:
            self._check_gradient(value)
        torch.Tensor.grad.__set__(self, None)
        origin = self.origin
        known, origin.wrapped_grad = origin.wrapped_grad, None
        if value is None:
            # The stand-in on the whole parameter says that there is a gradient.
            self.whole.grad = None
            self.leaf.grad = None
        elif known is not None and known[1] is value:
            self.leaf.grad, origin.wrapped_grad = known[0], known
        else:
            self.leaf.grad = self._flat(self._local_part_of(value.detach()))

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def grad_dtype(self) -> torch.dtype | None:
        """The dtype of gradients. Assignment is refused unless it changes nothing."""
        return torch.Tensor.grad_dtype.__get__(self)

    @grad_dtype.setter
    def grad_dtype(self, value: torch.dtype | None) -> None:
        if value != self.grad_dtype:
            raise NotImplementedError(
                f"fsdp_cpp: parameter '{self.fqn}': its gradient has the parameter's dtype, {self.dtype}; grad_dtype "
                "cannot be set. MixedPrecisionPolicy(reduce_dtype=…) sets the dtype in which gradients are reduced"
            )

    def _take_over_gradients(self) -> None:
        """Adds to the leaf's gradient whatever autograd has accumulated on this tensor itself, such as the gradient of
        a penalty on ``module.parameters()``; takes over a gradient that was assigned to the whole parameter."""
        assigned = self.whole.grad
        if assigned is not None and not _is_gradient_stand_in(assigned):
            self.whole.grad = None
            self.leaf.grad = self._flat(self._distribute(assigned)._local_tensor)
        elif assigned is not None and self.leaf.grad is None and not self.leaf.numel():
            self.leaf.grad = torch.empty_like(self.leaf)  # a rank without rows has a gradient when others have
        native = _native_grad(self)
        if native is None:
            return
        torch.Tensor.grad.__set__(self, None)
        own = self._flat(self._local_part_of(native))
        gradient = self.leaf.grad
        self.leaf.grad = own.clone() if gradient is None else gradient + own

    def local_gradient(self) -> torch.Tensor | None:
        """The gradient of this rank's part as the engine keeps it: 1-D, or None."""
        self._take_over_gradients()
        return self.leaf.grad

    def _check_gradient(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"assigned grad expected to be a Tensor or None but got grad of type {type(value)}")
        for what, own, given in (
            ("shape", tuple(self.shape), tuple(value.shape)),
            ("dtype", self.dtype, value.dtype),
            ("device", self.leaf.device, value.device),
        ):
            if own != given:
                raise RuntimeError(
                    f"fsdp_cpp: parameter '{self.fqn}': a gradient of {what} {given} was assigned to a parameter of "
                    f"{what} {own}"
                )

    def _flat(self, local: torch.Tensor) -> torch.Tensor:
        """A tensor of the local tensor's shape in the memory order of the leaf."""
        if local.stride() == self._local_tensor.stride():
            return local.as_strided((local.numel(),), (1,))
        flat = torch.empty_like(self.leaf, dtype=local.dtype)
        flat.as_strided(self._local_tensor.shape, self._local_tensor.stride()).copy_(local)
        return flat

    def _local_part_of(self, value: torch.Tensor) -> torch.Tensor:
        if not isinstance(value, DTensor):
            return self._distribute(value)._local_tensor
        if value._spec.placements != self._spec.placements or value._spec.mesh != self._spec.mesh:
            value = value.redistribute(self._spec.mesh, self._spec.placements)
        return value._local_tensor

    # -- hooks --

    def register_post_accumulate_grad_hook(self, hook: Callable[[torch.Tensor], None]) -> Any:
        """Calls ``hook(parameter)`` whenever this parameter's unit has reduced its gradients, with the gradient in
        ``parameter.grad``, which the hook may clear: an optimizer's step inside backward.

        An exception of a hook is raised at the end of backward, so that ranks stay in step; hooks that would follow
        are not called.
        """
        handle = super().register_post_accumulate_grad_hook(hook)
        call_hooks_when_reduced(self)
        return handle

    def register_hook(self, hook: Callable[[torch.Tensor], Any]) -> Any:
        """Refused: the gradient that reaches a parameter of the module is not this DTensor's."""
        raise NotImplementedError(
            f"fsdp_cpp: parameter '{self.fqn}': register_hook would see no gradient of the module. "
            "register_post_accumulate_grad_hook is called with the reduced gradient; a hook on the module's attribute "
            "(module.weight.register_hook) sees this rank's gradient before it is reduced"
        )

    def module_load(self, other: torch.Tensor, assign: bool = False) -> torch.Tensor:
        """Refused: only ``torch.__future__.set_swap_module_params_on_conversion`` calls it."""
        raise NotImplementedError(
            f"fsdp_cpp: parameter '{self.fqn}' cannot be swapped with another tensor. Load with "
            "torch.__future__.set_swap_module_params_on_conversion(False)"
        )


# Sharded parameters and their meshes by whole parameters. All are held weakly: a sharded one holds its whole one.
_by_whole: WeakIdKeyDictionary = WeakIdKeyDictionary()


def sharded_parameter_of(whole: torch.Tensor) -> ShardedParameter | None:
    """The sharded parameter of a whole one that fully_shard has sharded; None for other tensors.

    Makes another one if nobody has kept it while the whole one was in no module.
    """
    known = _by_whole.get(whole)
    if known is None:
        return None
    reference, mesh = known
    sharded = reference()
    return make_sharded_parameter(whole, mesh) if sharded is None and _whole_class.is_whole(whole) else sharded


# Sharded parameters by the identity of their specs, which their gradients share with them.
_by_spec: weakref.WeakValueDictionary[int, ShardedParameter] = weakref.WeakValueDictionary()


def parameter_cut_like(tensor: torch.Tensor) -> ShardedParameter | None:
    """The sharded parameter with which a DTensor shares its spec, as a parameter's gradient does; None for others."""
    parameter = _by_spec.get(id(tensor._spec)) if type(tensor) is DTensor else None
    return parameter if parameter is not None and parameter._spec is tensor._spec else None


_made = 0


def number_of_sharded_parameters() -> int:
    """The number of sharded parameters that this process has made so far. It never decreases."""
    return _made


def _new_tensor(
    own_dtype: torch.dtype,
    own_device: torch.device,
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | int | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Tensor.new_tensor of a whole parameter."""
    return torch.tensor(
        data,
        dtype=own_dtype if dtype is None else dtype,
        device=own_device if device is None else device,
        requires_grad=requires_grad,
    )


def make_sharded_parameter(whole: nn.Parameter, mesh: DeviceMesh) -> ShardedParameter:
    """Makes the sharded parameter of a whole one that the engine has just sharded over ``mesh``."""
    leaf = _whole_class.leaf(whole)
    dim = _whole_class.shard_dim(whole)
    others = (*whole.shape[:dim], *whole.shape[dim + 1 :])
    shape = (*whole.shape[:dim], leaf.numel() // max(math.prod(others), 1), *whole.shape[dim + 1 :])
    local = _whole_class.local(leaf, shape, whole.stride(), leaf.storage_offset())
    spec = _spec(whole, mesh, leaf.dtype, dim)
    parameter = ShardedParameter(local, spec, requires_grad=whole.requires_grad)
    parameter._is_param = True  # an nn.Parameter for isinstance
    parameter.__dict__["_origin"] = Origin(leaf, whole)
    _whole_class.share_version(parameter, leaf)
    _by_whole[whole] = (weakref.ref(parameter), mesh)
    # The engine has taken the whole parameter's gradient by the time that torch would call its hooks.
    whole.register_post_accumulate_grad_hook = functools.partial(_register_on_whole, weakref.ref(parameter))
    # torch takes the type of the new tensor from the dispatch key, which for a whole parameter names no device.
    whole.new_tensor = functools.partial(_new_tensor, whole.dtype, whole.device)
    _by_spec[id(spec)] = parameter
    global _made
    _made += 1
    return parameter


def _spec(whole: nn.Parameter, mesh: DeviceMesh, dtype: torch.dtype, dim: int) -> DTensorSpec:
    split = split_spec(whole)
    if split is not None:
        return spec_over_both(mesh, split, dim)
    placements: tuple[Placement, ...] = (Shard(dim),) if mesh.ndim == 1 else (Replicate(), Shard(dim))
    return DTensorSpec(mesh, placements, tensor_meta=TensorMeta(whole.shape, whole.stride(), dtype))


def _register_on_whole(reference: weakref.ref[ShardedParameter], hook: Callable[[torch.Tensor], None]) -> Any:
    parameter = reference()
    if parameter is None:
        raise RuntimeError("fsdp_cpp: the sharded parameter of this whole one no longer exists")
    return parameter.register_post_accumulate_grad_hook(hook)

"""A parameter as the optimizer sees it: a DTensor around this rank's rows."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

_aten = torch.ops.aten
_whole_class = torch.classes.fsdp_cpp.Whole

# Operators that return their argument as another tensor: what they return is written through as well.
_ALIASES = {_aten.detach.default, _aten.alias.default}


class ShardedParameter(DTensor):
    """This rank's part of a parameter, as ``module.parameters()``, state dicts and optimizers see it.

    A DTensor with the placements ``(Shard(0),)``, or ``(Replicate(), Shard(0))`` on a mesh of two dimensions. Its local
    tensor and its gradient are those of the engine's leaf, so that a step of an optimizer is a step on the shard. The
    module itself uses the whole parameter, which the engine gathers when an operator needs it.

    Writes to it, through whichever view or list, are counted with the leaf's, so that no gathered copy goes stale.
    """

    __slots__ = ()

    # -- the two views of one parameter --

    @property
    def whole(self) -> nn.Parameter:
        """The parameter as the module computes with it: full shape, gathered on use."""
        return self.__dict__["_whole"]

    @property
    def leaf(self) -> torch.Tensor:
        """This rank's part as the engine keeps it: 1-D."""
        return self.__dict__["_leaf"]

    # -- parameters that were sharded on meta --

    def mark_without_values(self) -> None:
        """Lets this parameter, which has memory already, pass for one on the device meta until it is written to."""
        self.__dict__["_version_without_values"] = self.leaf._version

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """Whether the parameter was sharded on the device meta, and no value has been written to it since."""
        return self.__dict__.get("_version_without_values") == self.leaf._version

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of this rank's part; meta as long as :attr:`is_meta`."""
        return torch.device("meta") if self.is_meta else self.leaf.device

    # -- gradient --

    @property
    def grad(self) -> DTensor | None:  # type: ignore[override]
        """The gradient of this rank's part: a view of the leaf's, or None."""
        self._take_over_native_gradient()
        gradient = self.leaf.grad
        if gradient is None:
            self.__dict__.pop("_wrapped_grad", None)
            return None
        known = self.__dict__.get("_wrapped_grad")
        if known is None or known[0] is not gradient:
            wrapped = DTensor(
                gradient.as_strided(self._local_tensor.shape, self._local_tensor.stride()),
                self._spec,
                requires_grad=False,
            )
            wrapped._gradient_of = weakref.ref(self)
            known = self.__dict__["_wrapped_grad"] = (gradient, wrapped)
        return known[1]

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        torch.Tensor.grad.__set__(self, None)
        self.__dict__.pop("_wrapped_grad", None)
        self.leaf.grad = None if value is None else self._flat(self._local_part_of(value))

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def _take_over_native_gradient(self) -> None:
        """Adds to the leaf's gradient whatever autograd has accumulated on this tensor itself, such as the gradient of
        a penalty on ``module.parameters()``."""
        native = torch.Tensor.grad.__get__(self)
        if native is None:
            return
        torch.Tensor.grad.__set__(self, None)
        own = self._flat(self._local_part_of(native))
        gradient = self.leaf.grad
        self.leaf.grad = own.clone() if gradient is None else gradient + own

    def local_gradient(self) -> torch.Tensor | None:
        """The gradient of this rank's part as the engine keeps it: 1-D, or None."""
        self._take_over_native_gradient()
        return self.leaf.grad

    # -- writes --

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        if func in _ALIASES:
            return args[0]._alias()
        if func is _aten.copy_.default and not isinstance(args[1], DTensor):
            args = (args[0], args[0]._distribute(args[1]), *args[2:])
        written = _written(func, args, kwargs)
        for parameter in written:
            _whole_class.prepare_write(parameter.leaf)
        result = _run_on_dtensors(func, args, kwargs or {})
        for parameter in written:
            torch.autograd.graph.increment_version(parameter.leaf)
        return result

    def _alias(self) -> ShardedParameter:
        alias = ShardedParameter(self._local_tensor, self._spec, requires_grad=False)
        alias.__dict__.update(_leaf=self.leaf, _whole=self.whole)
        return alias

    def _as_dtensor(self) -> DTensor:
        """A DTensor over the same local tensor, which torch dispatches by itself."""
        known = self.__dict__.get("_dtensor")
        if known is None:
            known = self.__dict__["_dtensor"] = DTensor(self._local_tensor, self._spec, requires_grad=False)
        return known

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

    def _distribute(self, full: torch.Tensor) -> DTensor:
        """The DTensor of which every rank has all of ``full``; communicates nothing."""
        if full.dim() and full.shape != self.shape:
            full = full.expand(self.shape)
        elif not full.dim():
            return DTensor(full.expand(self._local_tensor.shape), self._spec, requires_grad=False)
        shape, offset = compute_local_shape_and_global_offset(self.shape, self._spec.mesh, self._spec.placements)
        local = full.narrow(0, offset[0], shape[0]) if shape[0] else full.narrow(0, 0, 0)
        return DTensor(local, self._spec, requires_grad=False)

    # -- copies --

    def __deepcopy__(self, memo: dict[int, Any]) -> DTensor:
        copy = DTensor(self._local_tensor.clone(), self._spec, requires_grad=self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol):
        # A clone, because the local tensor is a view of the shards of a whole unit, all of which would be saved.
        return DTensor(self._local_tensor.detach().clone(), self._spec, requires_grad=self.requires_grad).__reduce_ex__(
            protocol
        )


def _written(func, args, kwargs) -> list[ShardedParameter]:
    """The sharded parameters among the arguments that an operator writes to."""
    found = []
    for position, name in _written_arguments(func):
        value = args[position] if position < len(args) else (kwargs or {}).get(name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, ShardedParameter):
                found.append(tensor)
    return found


_written_by_operator: dict[Any, list[tuple[int, str]]] = {}


def _written_arguments(func) -> list[tuple[int, str]]:
    known = _written_by_operator.get(func)
    if known is None:
        known = _written_by_operator[func] = [
            (position, argument.name)
            for position, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
    return known


def _run_on_dtensors(func, args, kwargs):
    """Runs an operator on plain DTensors in place of sharded parameters. Results that are one of them are given back as
    the parameter that the caller knows."""
    originals: dict[int, ShardedParameter] = {}

    def plain(parameter: ShardedParameter) -> DTensor:
        stand_in = parameter._as_dtensor()
        originals[id(stand_in)] = parameter
        return stand_in

    args = tree_map_only(ShardedParameter, plain, args)
    kwargs = tree_map_only(ShardedParameter, plain, kwargs)
    result = func(*args, **kwargs)
    return tree_map_only(DTensor, lambda tensor: originals.get(id(tensor), tensor), result)


# Sharded parameters by their whole ones, both held weakly: a sharded parameter holds its whole one.
_by_whole: WeakIdKeyDictionary = WeakIdKeyDictionary()


def sharded_parameter_of(whole: torch.Tensor) -> ShardedParameter | None:
    """The sharded parameter of a whole one that fully_shard has sharded; None for other tensors."""
    reference = _by_whole.get(whole)
    return reference() if reference is not None else None


def parameter_of_gradient(tensor: torch.Tensor) -> ShardedParameter | None:
    """The sharded parameter whose ``grad`` has returned the tensor; None for other tensors."""
    reference = tensor.__dict__.get("_gradient_of") if type(tensor) is DTensor else None
    return reference() if reference is not None else None


_made = 0


def number_of_sharded_parameters() -> int:
    """The number of sharded parameters that this process has made so far. It never decreases."""
    return _made


def make_sharded_parameter(whole: nn.Parameter, mesh: DeviceMesh) -> ShardedParameter:
    """Makes the sharded parameter of a whole one that the engine has just sharded over ``mesh``."""
    leaf = _whole_class.leaf(whole)
    rows = leaf.numel() // max(whole.shape[1:].numel(), 1)
    local = leaf.detach().as_strided((rows, *whole.shape[1:]), whole.stride())
    placements: tuple[Placement, ...] = (Shard(0),) if mesh.ndim == 1 else (Replicate(), Shard(0))
    spec = DTensorSpec(mesh, placements, tensor_meta=TensorMeta(whole.shape, whole.stride(), leaf.dtype))
    parameter = ShardedParameter(local, spec, requires_grad=whole.requires_grad)
    parameter._is_param = True  # an nn.Parameter for isinstance
    parameter.__dict__.update(_leaf=leaf, _whole=whole)
    _whole_class.share_version(parameter, leaf)
    _by_whole[whole] = weakref.ref(parameter)
    global _made
    _made += 1
    return parameter

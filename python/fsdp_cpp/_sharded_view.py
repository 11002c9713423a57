"""DTensors whose memory is that of a sharded parameter, and how writes through them are seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement
from torch.distributed.tensor._api import _ToTorchTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten
_whole_class = torch.classes.fsdp_cpp.Whole
_prepare_write, _local_of = (
    _whole_class.prepare_write,
    _whole_class.local,
)  # looked up once: that takes longer than a call

# Operators that return their argument as another tensor, without a change of its layout.
_ALIASES = {_aten.detach.default, _aten.alias.default}

# Operators that torch runs on each rank's rows alone, although their arguments name rows of the whole tensor.
_WRONG_ON_ROWS = {_aten.scatter_add_.default}


class Origin:
    """The parameter that a view of its shard belongs to, and what the package keeps about the view.

    A copy of a view does not belong to the parameter. torch's staging for asynchronous checkpoints copies a tensor's
    attributes one by one; of this one it gets None.
    """

    __slots__ = (
        "dtensor",
        "has_new_gradient",
        "is_copy",
        "leaf",
        "tree_hooks",
        "version_without_values",
        "whole",
        "wrapped_grad",
    )

    def __init__(self, leaf: torch.Tensor, whole: torch.Tensor, is_copy: bool = False) -> None:
        self.leaf, self.whole, self.is_copy = leaf, whole, is_copy
        self.dtensor: DTensor | None = None
        # Of parameters only:
        self.wrapped_grad: tuple[torch.Tensor, DTensor] | None = None
        self.version_without_values: int | None = None
        self.tree_hooks: Any = None
        self.has_new_gradient = False

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None


class ShardedView(DTensor):
    """A DTensor that refers to a sharded parameter's memory: its ``.data`` and ``.detach()``, a view of it, a value of
    a state dict.

    Writes to it, in whichever operator or list, are counted with those to the parameter's leaf, so that no gathered
    copy goes stale, and wait until no other rank reads the shard.
    """

    # No __slots__ here: torch's staging copies the attributes that DTensor's lists.

    @property
    def origin(self) -> Origin:
        return self.__dict__["_origin"]

    @property
    def leaf(self) -> torch.Tensor:
        """This rank's part of the parameter as the engine keeps it: 1-D."""
        return self.__dict__["_origin"].leaf

    @property
    def fqn(self) -> str:
        """The name of the parameter in the module that was sharded as a whole."""
        return _fqn(self.origin.whole)

    def __repr__(self) -> str:  # type: ignore[override]
        return (
            f"{type(self).__name__}('{self.fqn}', shape={tuple(self.shape)}, "
            f"local_shape={tuple(self._local_tensor.shape)}, placements={self.placements}, "
            f"local_tensor={self._local_tensor})"
        )

    # -- operators --

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        if func in _ALIASES:
            return args[0]._view(args[0]._local_tensor, args[0]._spec)
        if func is _aten.copy_.default and not isinstance(args[1], DTensor):
            args = (args[0], args[0]._distribute(torch.as_tensor(args[1])), *args[2:])
        signature = _signature(func)
        written = _written(signature, args, kwargs)
        for tensor in written:
            tensor._prepare_write(func, signature)
        try:
            result = (_run_with_out if signature.out else _run_on_dtensors)(func, args, kwargs or {})
        except (NotImplementedError, RuntimeError) as error:
            if written and type(error) in (NotImplementedError, RuntimeError):
                raise type(error)(
                    f"fsdp_cpp: {func} cannot write to parameter '{written[0].fqn}', of which this rank holds rows: "
                    f"{str(error).rstrip('.')}. Write to the rows, parameter.to_local(), or copy_() a whole tensor "
                    "into the parameter"
                ) from error
            raise
        for tensor in written:
            torch.autograd.graph.increment_version(tensor.leaf)
        return _as_views(result, args) if signature.returns_view else result

    def _prepare_write(self, func: Any, signature: _Signature) -> None:
        if signature.changes_layout or func in _WRONG_ON_ROWS:
            raise NotImplementedError(
                f"fsdp_cpp: {func} cannot be used on parameter '{self.fqn}', whose rows are spread over the ranks. Use "
                "it on parameter.full_tensor() and copy_() the result"
            )
        if self.origin.is_copy:
            raise RuntimeError(
                f"fsdp_cpp: {func} writes to a part of parameter '{self.fqn}' that was made by indexing or splitting "
                "across ranks and is a copy, so the parameter would not change. Write to this rank's rows, "
                "parameter.to_local(), or clone() the part if the parameter is to stay as it is"
            )
        _prepare_write(self.leaf)

    def _view(self, local: torch.Tensor, spec: DTensorSpec) -> ShardedView:
        is_copy = self.origin.is_copy or not torch._C._is_alias_of(local, self.leaf)
        if not is_copy and local.dtype == self.leaf.dtype:
            # Lets .data of the local tensor count its writes as well.
            local = _local_of(self.leaf, local.shape, local.stride(), local.storage_offset())
        view = ShardedView(local, spec, requires_grad=False)
        view.__dict__["_origin"] = Origin(self.leaf, self.origin.whole, is_copy)
        return view

    def _as_dtensor(self) -> DTensor:
        """A DTensor over the same local tensor, which torch dispatches by itself."""
        origin = self.origin
        if origin.dtensor is None:
            origin.dtensor = DTensor(self._local_tensor, self._spec, requires_grad=False)
        return origin.dtensor

    def _distribute(self, full: torch.Tensor) -> DTensor:
        """The DTensor of which every rank has all of ``full``, which may have fewer dimensions; communicates
        nothing."""
        full = full.expand(self.shape)
        shape, offset = compute_local_shape_and_global_offset(self.shape, self._spec.mesh, self._spec.placements)
        for dimension, size in enumerate(shape):
            full = full.narrow(dimension, offset[dimension] if size else 0, size)
        return DTensor(full, self._spec, requires_grad=False)

    # -- methods that would lose the connection --

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """This rank's part as a plain tensor, as ``DTensor.to_local``. Writes to it, also through its ``.data``, are
        counted with the parameter's."""
        if torch.is_grad_enabled() and self.requires_grad:
            local = _ToLocal.apply(self, tuple(grad_placements) if grad_placements is not None else None)
        else:
            local = self._own_local()
        if isinstance(self, nn.Parameter):
            local._is_param = True
        return local

    def _own_local(self) -> torch.Tensor:
        """The local tensor as another object."""
        local = self._local_tensor
        if self.origin.is_copy or local.dtype != self.leaf.dtype:
            return local.view_as(local)
        return _local_of(self.leaf, local.shape, local.stride(), local.storage_offset())

    def data_ptr(self) -> int:
        """0, as for DTensors in general: only the local tensor has memory. Without this method it would be the rows'
        offset in the unit's shards, which passes for an address."""
        return 0

    def redistribute(self, *args: Any, **kwargs: Any) -> DTensor:  # type: ignore[override]
        """As ``DTensor.redistribute``. The result never shares memory with the parameter, not even if its placements
        are the parameter's own."""
        result = super().redistribute(*args, **kwargs)
        return result.clone() if torch._C._is_alias_of(result._local_tensor, self.leaf) else result

    def share_memory_(self) -> NoReturn:
        """Refused."""
        self._refuse("be moved to shared memory", "share_memory_()")

    def apply_(self, *args: Any) -> NoReturn:
        """Refused, as :meth:`map_` and :meth:`map2_`."""
        self._refuse("be changed by a Python function", "apply_(…)")

    def map_(self, *args: Any) -> NoReturn:
        """Refused."""
        self._refuse("be changed by a Python function", "map_(…)")

    def map2_(self, *args: Any) -> NoReturn:
        """Refused."""
        self._refuse("be changed by a Python function", "map2_(…)")

    def __dlpack__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: the memory of a DTensor is that of its local part."""
        raise BufferError(
            f"fsdp_cpp: parameter '{self.fqn}' is sharded and has no memory of its own to export; export a copy of "
            "this rank's rows, parameter.to_local().clone()"
        )

    def _refuse(self, what: str, call: str) -> NoReturn:
        raise NotImplementedError(
            f"fsdp_cpp: parameter '{self.fqn}' cannot {what}, because the engine would not see it. Work on a copy, "
            f"parameter.to_local().clone().{call}, and copy_() the result"
        )

    # -- copies --

    def __copy__(self) -> ShardedView:
        """A leaf on the same memory, without gradient, as of a plain tensor. Writes to it are counted."""
        copy = self.detach()
        if isinstance(self, nn.Parameter):
            copy._is_param = True
        return copy.requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> DTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                f"fsdp_cpp: a view of parameter '{self.fqn}' with a gradient function cannot be deep-copied; detach() "
                "it first"
            )
        copy = self._independent()
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = self.grad.clone()
        return copy

    def __reduce_ex__(self, protocol):
        return self._independent().__reduce_ex__(protocol)

    def _independent(self) -> DTensor:
        """A DTensor with the same values in memory of its own: the local tensor is a part of the shards of a whole
        unit."""
        copy = DTensor(self._local_tensor.detach().clone(), self._spec, requires_grad=self.requires_grad)
        if isinstance(self, nn.Parameter):
            copy._is_param = True
        return copy


class _ToLocal(_ToTorchTensor):
    @staticmethod
    def forward(ctx, input, grad_placements):  # type: ignore[override]
        _ToTorchTensor.forward(ctx, input, grad_placements)
        return input._own_local()


def _fqn(whole: torch.Tensor) -> str:
    return _whole_class.fqn(whole) if _whole_class.is_whole(whole) else "of a model that no longer exists"


class _Signature:
    """The arguments that an operator writes to, whether it returns a view of an argument, and whether it changes the
    sizes, the strides or the memory of one."""

    def __init__(self, func: Any) -> None:
        self.written = [
            (position, argument.name)
            for position, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.out = [argument.name for argument in func._schema.arguments if argument.is_out]
        self.changes_layout = torch.Tag.inplace_view in func.tags
        returned = [result.alias_info for result in func._schema.returns]
        self.returns_view = any(alias is not None and not alias.is_write for alias in returned)


_signatures: dict[Any, _Signature] = {}


def _signature(func: Any) -> _Signature:
    known = _signatures.get(func)
    if known is None:
        known = _signatures[func] = _Signature(func)
    return known


def _written(signature: _Signature, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[ShardedView]:
    """The sharded parameters and views of them among the arguments that an operator writes to."""
    found = []
    for position, name in signature.written:
        value = args[position] if position < len(args) else (kwargs or {}).get(name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, ShardedView):
                found.append(tensor)
    return found


def _run_on_dtensors(func, args, kwargs):
    """Runs an operator on plain DTensors in place of sharded ones. Results that are one of them are given back as the
    tensor that the caller knows."""
    originals: dict[int, ShardedView] = {}

    def plain(tensor: ShardedView) -> DTensor:
        stand_in = tensor._as_dtensor()
        originals[id(stand_in)] = tensor
        return stand_in

    args = tree_map_only(ShardedView, plain, args)
    kwargs = tree_map_only(ShardedView, plain, kwargs)
    result = func(*args, **kwargs)
    return tree_map_only(DTensor, lambda tensor: originals.get(id(tensor), tensor), result)


def _run_with_out(func, args, kwargs):
    """Runs an operator with ``out=``. Its results are first written elsewhere, because an operator whose result has
    another shape would change the shape of rows that it has half written."""
    targets = {name: kwargs[name] for name in _signature(func).out if isinstance(kwargs.get(name), ShardedView)}
    outs = {name: torch.empty_like(target._as_dtensor()) for name, target in targets.items()}
    result = _run_on_dtensors(func, args, {**kwargs, **outs})
    for name, target in targets.items():
        if outs[name]._spec.shape != target.shape or (
            outs[name].placements == target.placements and outs[name]._local_tensor.shape != target._local_tensor.shape
        ):
            raise RuntimeError(f"its result has another shape than {tuple(target.shape)}")
        target._as_dtensor().copy_(outs[name])
    originals = {id(out): targets[name] for name, out in outs.items()}
    return tree_map_only(DTensor, lambda tensor: originals.get(id(tensor), tensor), result)


def _as_views(result: Any, args: Sequence[Any]) -> Any:
    """The results of an operator that returns views of its first sharded argument."""
    base = next((argument for argument in args if isinstance(argument, ShardedView)), None)
    if base is None:
        return result

    def view(tensor: DTensor) -> DTensor:
        return tensor if isinstance(tensor, ShardedView) else base._view(tensor._local_tensor, tensor._spec)

    return tree_map_only(DTensor, view, result)

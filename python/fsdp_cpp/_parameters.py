"""The parameters of one sharded module: sharded for those who list them, whole for the module itself."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_cpp._conversion import apply_to_module, convert
from fsdp_cpp._sharded_parameter import ShardedParameter, sharded_parameter_of
from fsdp_cpp._tensor_parallel import split_spec, whole_behind

# The module of torch through which torch.func.functional_call puts values in the place of parameters for one call.
_FUNCTIONAL_CALL = "torch.nn.utils._named_member_accessor"


class Parameters(dict):
    """``module._parameters`` of a module with sharded parameters.

    ``items()`` and ``values()`` are sharded parameters, so ``module.named_parameters()``, state dicts and optimizers
    are. ``[name]`` is the whole parameter, and so is ``module.__dict__[name]``, which attribute access and
    torch.compile find first. Setting a name keeps the two in step:

    - a whole parameter of a sharded module (tied weights, or torch.func.functional_call that puts it back) is listed as
      its sharded one;
    - a DTensor takes the place of a sharded parameter by being copied into it (``load_state_dict(assign=True)``);
    - torch.func.functional_call's values, and those under names that had no sharded parameter, stand for themselves;
    - any other tensor in the place of a sharded parameter is refused: ranks would train it apart.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._displaced: dict[str, ShardedParameter] = {}  # by functional_call, which puts back the whole ones
        super().__init__(module._parameters)

    def raw(self, name: str) -> Any:
        """The value as it is listed."""
        return dict.__getitem__(self, name)

    def __getitem__(self, name: str) -> Any:
        value = dict.__getitem__(self, name)
        return value.used if type(value) is ShardedParameter else value

    def items(self) -> Any:
        _refuse_export()
        return super().items()

    def values(self) -> Any:
        _refuse_export()
        return super().values()

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        old = dict.get(self, name)
        if isinstance(value, torch.Tensor) and type(value) is not ShardedParameter:
            known = sharded_parameter_of(whole_behind(value))
            if known is not None:
                value = known
            elif type(old) is ShardedParameter:
                if sys._getframe(1).f_globals.get("__name__") == _FUNCTIONAL_CALL:
                    self._displaced[name] = old
                    value = _for_one_call(value)
                else:
                    value = _taken_into(old, value)
        if type(value) is ShardedParameter:
            self._displaced.pop(name, None)
        dict.__setitem__(self, name, value)
        self._set_attribute(name, value)

    def __delitem__(self, name: str) -> None:
        dict.__delitem__(self, name)
        self._set_attribute(name, None)

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self and default:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *others: Any, **more: Any) -> None:
        for name, value in dict(*others, **more).items():
            self[name] = value

    def __ior__(self, other: Any) -> Parameters:
        self.update(other)
        return self

    def popitem(self) -> tuple[str, Any]:
        name = next(reversed(self))
        return name, self.pop(name)

    def clear(self) -> None:
        for name in list(self):
            del self[name]

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise AssertionError(
            f"FSDP does not support deepcopy: {self._describe()} has sharded parameters, and a copy would share their "
            "memory with the original. Build a second module, shard it, and load the first one's state dict"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotImplementedError(
            f"fsdp_cpp: {self._describe()} has sharded parameters and cannot be pickled. Save its state_dict(), or use "
            "torch.distributed.checkpoint"
        )

    def _set_attribute(self, name: str, value: Any) -> None:
        module = self._module()
        if module is None:
            return
        if type(value) is ShardedParameter and split_spec(value.whole) is None:
            module.__dict__[name] = value.whole
        else:
            module.__dict__.pop(name, None)

    def _describe(self) -> str:
        module = self._module()
        names = [f"'{value.fqn}'" for value in self.values() if type(value) is ShardedParameter]
        return f"{type(module).__name__} (parameters {', '.join(names)})"


def _for_one_call(value: torch.Tensor) -> torch.Tensor:
    """A value of torch.func.functional_call, as modules compute with it. Gradients flow to ``value``."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _taken_into(old: ShardedParameter, value: torch.Tensor) -> ShardedParameter:
    """Copies a DTensor into the sharded parameter whose place it takes."""
    if not isinstance(value, DTensor):
        raise NotImplementedError(
            f"fsdp_cpp: parameter '{old.fqn}' cannot be replaced by another tensor after fully_shard: ranks would "
            "train it apart. Replace it before fully_shard, copy values into it (parameter.copy_(value), or "
            "load_state_dict without assign=True), or assign a DTensor, which is copied"
        )
    if value.shape != old.shape:
        raise ValueError(
            f"fsdp_cpp: a DTensor of shape {tuple(value.shape)} was assigned to parameter '{old.fqn}' of shape "
            f"{tuple(old.shape)}"
        )
    if value.dtype != old.dtype or value.device != old.leaf.device:
        convert(old, value.dtype, value.device)
    with torch.no_grad():
        if not value._local_tensor.is_set_to(old._local_tensor):
            old.copy_(value)
    if value.requires_grad != old.requires_grad:
        old.requires_grad_(value.requires_grad)
    return old


def _refuse_export() -> None:
    if torch.compiler.is_exporting():
        raise NotImplementedError(
            "fsdp_cpp: torch.export of a sharded module: the program would compute with whole parameters and hold "
            "sharded ones. Export a module that is not sharded, with the values of this one's full state dict"
        )


def whole_parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's own parameters by name, sharded ones as whole ones; without those that are None."""
    names = [*module._parameters, *getattr(module._parameters, "wholes", ())]  # LocalParameters hides some
    found = {name: whole_behind(module._parameters[name]) for name in names}
    return {name: value for name, value in found.items() if value is not None and not is_flat_parameter(value)}


def is_flat_parameter(value: torch.Tensor) -> bool:
    """Whether a tensor is one that FullyShardedDataParallel registers in the place of a unit's parameters."""
    return getattr(value, "_is_flat_param", False)


def list_as_sharded(module: nn.Module, name: str, parameter: ShardedParameter) -> None:
    """Puts a sharded parameter in the place of its whole one, in a module that :func:`may_hold_sharded`."""
    module._parameters[name] = parameter


def may_hold_sharded(module: nn.Module) -> None:
    """Prepares a module for sharded parameters of its own. Does nothing the second time."""
    if type(module._parameters) is not Parameters:
        module.__dict__["_parameters"] = Parameters(module)
        # Before the class's method, which would replace the memory of sharded parameters.
        module.__dict__["_apply"] = functools.partial(apply_to_module, weakref.ref(module))

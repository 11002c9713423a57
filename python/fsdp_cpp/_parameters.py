"""The parameters of one sharded module: sharded for those who list them, whole for the module itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_cpp._sharded_parameter import ShardedParameter, sharded_parameter_of


class Parameters(dict):
    """``module._parameters`` of a module with sharded parameters.

    ``items()`` and ``values()`` are sharded parameters, so ``module.named_parameters()``, state dicts and optimizers
    are. ``[name]`` is the whole parameter, and so is ``module.__dict__[name]``, which attribute access and
    torch.compile find first. Setting a name keeps the two in step:

    - a whole parameter of a sharded module (tied weights, or torch.func.functional_call that puts it back) is listed as
      its sharded one;
    - a DTensor takes the place of a sharded parameter by being copied into it (``load_state_dict(assign=True)``);
    - any other value stands for itself.
    """

    def __init__(self, module: nn.Module) -> None:
        self._attributes = module.__dict__
        # Sharded parameters that other values have replaced. They may come back as whole ones, for example after
        # torch.func.functional_call, and nothing else need hold them until then.
        self._replaced: dict[int, ShardedParameter] = {}
        super().__init__(module._parameters)

    def raw(self, name: str) -> Any:
        """The value as it is listed."""
        return dict.__getitem__(self, name)

    def __getitem__(self, name: str) -> Any:
        value = dict.__getitem__(self, name)
        return value.whole if type(value) is ShardedParameter else value

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
        value = self._listed(name, value)
        self._keep(name)
        dict.__setitem__(self, name, value)
        if type(value) is ShardedParameter:
            self._attributes[name] = value.whole
        else:
            self._attributes.pop(name, None)

    def __delitem__(self, name: str) -> None:
        self._keep(name)
        dict.__delitem__(self, name)
        self._attributes.pop(name, None)

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

    def _keep(self, name: str) -> None:
        old = dict.get(self, name)
        if type(old) is ShardedParameter:
            self._replaced[id(old)] = old

    def _listed(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or type(value) is ShardedParameter:
            return value
        sharded = sharded_parameter_of(value)
        if sharded is not None:
            return sharded
        old = dict.get(self, name)
        if isinstance(value, DTensor) and type(old) is ShardedParameter:
            with torch.no_grad():
                old.copy_(value)
            return old
        return value


def _refuse_export() -> None:
    if torch.compiler.is_exporting():
        raise NotImplementedError(
            "fsdp_cpp: torch.export of a sharded module: the program would compute with whole parameters and hold "
            "sharded ones. Export a module that is not sharded, with the values of this one's full state dict"
        )


def whole_parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's own parameters by name, sharded ones as whole ones; without those that are None."""
    return {name: module._parameters[name] for name in module._parameters if module._parameters[name] is not None}


def list_as_sharded(module: nn.Module, name: str, parameter: ShardedParameter) -> None:
    """Puts a sharded parameter in the place of its whole one."""
    if type(module._parameters) is not Parameters:
        module.__dict__["_parameters"] = Parameters(module)
    module._parameters[name] = parameter

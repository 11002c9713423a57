"""Optimizers of torch.optim in checkpoints of the library: their state by leaf, and back."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from fsdp_cpp._sharded_parameter import ShardedParameter

# Options that choose an implementation or, like maximize, that LibTorch's optimizers do not have. The library compares
# the other ones with those of the optimizer that loads.
_OF_PYTHON = {"capturable", "differentiable", "foreach", "fused", "maximize"}


class OptimizerParts:
    """The optimizers of one checkpoint. Their parameter groups count through, in the order of the optimizers."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._groups = [(one, group) for one in optimizers for group in one.param_groups]
        self._forms: dict[str, str] = {}  # of the numbers of states: "float32" for a tensor, or "int", "float", "bool"
        for _, group in self._groups:
            for parameter in group["params"]:
                _check_parameter(parameter)

    # -- to the library --

    def hand_over(self, checkpoint: torch.ScriptObject) -> None:
        """Describes the optimizers to the library. Tensors share the optimizer's memory."""
        for optimizer, group in self._groups:
            checkpoint.add_group([parameter.leaf for parameter in group["params"]], _numeric_options(optimizer, group))
            for parameter in group["params"]:
                if optimizer.state.get(parameter):
                    self._hand_over_state(checkpoint, parameter, optimizer.state[parameter])

    def _hand_over_state(self, checkpoint: Any, parameter: ShardedParameter, state: dict[str, Any]) -> None:
        tensors, numbers = {}, {}
        for name, value in state.items():
            if value is None:
                continue
            if _is_number(value):
                numbers[name] = _finite(float(value), f"optimizer state '{name}' of parameter '{parameter.fqn}'")
                self._forms.setdefault(name, _form_of(value))
            elif isinstance(value, DTensor) and value.shape == parameter.shape and "/" not in name:
                tensors[name] = parameter._flat(parameter._local_part_of(value).detach())
            else:
                raise NotImplementedError(
                    f"fsdp_cpp: optimizer state '{name}' of parameter '{parameter.fqn}' is neither a number nor a "
                    "DTensor of the parameter's shape. torch.distributed.checkpoint saves it"
                )
        checkpoint.set_state(parameter.leaf, tensors, numbers)

    def record(self) -> dict[str, Any]:
        """What the library's own description of an optimizer has no place for."""
        groups = [
            {name: _as_json(name, value) for name, value in group.items() if name != "params"}
            for _, group in self._groups
        ]
        return {"groups": groups, "numbers": self._forms}

    # -- from the library --

    def take_back(self, checkpoint: torch.ScriptObject, record: dict[str, Any]) -> None:
        """Puts the loaded state into the optimizers, as their load_state_dict does."""
        forms = {**record.get("numbers", {}), **self._forms}
        saved = _group_numbers(json.loads(checkpoint.groups()))
        first = 0
        for optimizer in self._optimizers:
            state, groups, position = {}, [], 0
            for number, group in enumerate(optimizer.param_groups, first):
                positions = range(position, position + len(group["params"]))
                of_python = _options_in_record(group, saved, record)
                numeric = _python_options(group, checkpoint.options(number))
                own = {name: value for name, value in group.items() if name != "params"}
                groups.append({**own, **of_python, **numeric, "params": list(positions)})
                for index, parameter in zip(positions, group["params"], strict=True):
                    if checkpoint.has_state(parameter.leaf):
                        state[index] = _state_of(checkpoint, parameter, forms)
                position = positions.stop
            first += len(groups)
            optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_parameter(parameter: torch.Tensor) -> None:
    if type(parameter) is not ShardedParameter:
        raise NotImplementedError(
            f"fsdp_cpp: the optimizer holds a parameter of shape {tuple(parameter.shape)} that is not sharded; save "
            "and load take optimizers of sharded parameters"
        )


# -- numbers and options --


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not isinstance(value, DTensor) and value.ndim == 0 and not value.is_complex()
    return isinstance(value, (bool, int, float))


def _form_of(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__


def _in_form(value: float, form: str) -> Any:
    if form in ("bool", "int", "float"):
        return {"bool": bool, "int": int, "float": float}[form](value)
    return torch.tensor(value, dtype=getattr(torch, form))


def _finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"fsdp_cpp: {what} is {value}, which a checkpoint cannot hold")
    return value


def _numeric_options(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> dict[str, float]:
    """The options that are numbers, by LibTorch's names: those of a tuple one by one, as beta1 and beta2."""
    numbers: dict[str, float] = {}
    for name in optimizer.defaults:
        value = group.get(name)
        if name in _OF_PYTHON:
            continue
        for one, number in _named_numbers(name, value):
            numbers[one] = _finite(float(number), f"option '{name}' of {type(optimizer).__name__}")
    return numbers


def _named_numbers(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)) and all(_is_number(one) for one in value):
        return [(f"{name.removesuffix('s')}{number}", one) for number, one in enumerate(value, 1)]
    return [(name, value)] if _is_number(value) else []


def _python_options(group: dict[str, Any], numbers: dict[str, float]) -> dict[str, Any]:
    """Numbers of the library as options of the forms that the group has now."""
    options: dict[str, Any] = {}
    for name, value in group.items():
        names = [one for one, _ in _named_numbers(name, value)]
        if name == "params" or not names or any(one not in numbers for one in names):
            continue
        if isinstance(value, (list, tuple)):
            values = [_like(one, numbers[key]) for one, key in zip(value, names, strict=True)]
            options[name] = type(value)(values)
        else:
            options[name] = _like(value, numbers[name])
    return options


def _like(value: Any, number: float) -> Any:
    """A number in the form of a present value. Integers that became fractions stay fractions."""
    if isinstance(value, torch.Tensor):
        return torch.tensor(number, dtype=value.dtype, device=value.device)
    if type(value) is int and not number.is_integer():
        return number
    return type(value)(number)


def _as_json(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_as_json(name, one) for one in value]
    raise NotImplementedError(f"fsdp_cpp: the option '{name}' of a parameter group, {value!r}, has no JSON form")


def _group_numbers(groups: list[dict[str, Any]]) -> dict[str, int]:
    """The numbers of saved groups by the names of their parameters."""
    return {name: number for number, group in enumerate(groups) for name in group["parameters"]}


def _options_in_record(group: dict[str, Any], saved: dict[str, int], record: dict[str, Any]) -> dict[str, Any]:
    """The saved options of a group that the library did not compare, in the forms that JSON has."""
    number = next((saved[one.fqn] for one in group["params"] if one.fqn in saved), None)
    groups = record.get("groups", [])
    if number is None or number >= len(groups):
        return {}
    options = dict(groups[number])
    for name, value in options.items():
        old = group.get(name)
        if isinstance(value, list) and isinstance(old, tuple):
            options[name] = tuple(value)
        elif isinstance(old, torch.Tensor) and isinstance(value, (int, float)):
            options[name] = torch.tensor(value, dtype=old.dtype, device=old.device)
    return options


# -- state --


def _state_of(checkpoint: Any, parameter: ShardedParameter, forms: dict[str, str]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, number in checkpoint.numbers(parameter.leaf).items():
        state[name] = _in_form(number, forms.get(name, "float32"))
    for name, flat in checkpoint.tensors(parameter.leaf).items():
        state[name] = _as_dtensor(parameter, flat)
    return state


def _as_dtensor(parameter: ShardedParameter, flat: torch.Tensor) -> DTensor:
    local = flat.as_strided(parameter._local_tensor.shape, parameter._local_tensor.stride())
    meta = TensorMeta(parameter.shape, parameter.stride(), flat.dtype)
    spec = DTensorSpec(parameter._spec.mesh, parameter._spec.placements, tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)

"""Conversions of whole modules: to(), half(), to_empty(), share_memory(), …"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fsdp_cpp._sharded_parameter import ShardedParameter


def apply_to_module(
    reference: weakref.ref[nn.Module], fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    """Stands for ``nn.Module._apply`` on a module with sharded parameters of its own: these get the values of ``fn``'s
    results, in place; all else is done by the module's class."""
    module = reference()
    assert module is not None, "the module was destroyed"
    for parameter in module._parameters.values():
        if type(parameter) is ShardedParameter:
            _apply_to_parameter(parameter, fn)
    with _without_sharded_parameters(module):
        type(module)._apply(module, fn, recurse)
    return module


@contextmanager
def _without_sharded_parameters(module: nn.Module) -> Iterator[None]:
    listed = module._parameters
    others = {name: value for name, value in listed.items() if type(value) is not ShardedParameter}
    module.__dict__["_parameters"] = others
    try:
        yield
    finally:
        module.__dict__["_parameters"] = listed
        listed.update(others)


@torch.no_grad()
def _apply_to_parameter(parameter: ShardedParameter, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    _take(parameter, fn(parameter))
    gradient = parameter.grad
    if gradient is not None:
        applied = fn(gradient)
        if applied is not gradient:
            gradient.copy_(applied)


def _take(parameter: ShardedParameter, applied: torch.Tensor) -> None:
    if applied.dtype != parameter.dtype or applied.device != parameter.leaf.device:
        convert(parameter, applied.dtype, applied.device)
    elif applied is not parameter:
        parameter.copy_(applied)


def convert(parameter: ShardedParameter, dtype: torch.dtype, device: torch.device) -> None:
    """Gives a parameter another dtype or device, in both views: the one place where that happens.

    Raises:
        NotImplementedError: always. The engine keeps the dtype and the device that a parameter was sharded with.
    """
    wanted: Any = dtype if dtype != parameter.dtype else device
    present: Any = parameter.dtype if dtype != parameter.dtype else parameter.leaf.device
    raise NotImplementedError(
        f"fsdp_cpp: parameter '{parameter.fqn}' cannot be converted from {present} to {wanted} after fully_shard. "
        "Convert the model before fully_shard, or compute in another dtype with MixedPrecisionPolicy(param_dtype=…)"
    )

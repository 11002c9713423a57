"""Conversions of whole modules: to(), half(), to_empty(), …"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fsdp_cpp._parameters import Parameters
from fsdp_cpp._sharded_parameter import ShardedParameter


def _modules(module: nn.Module, recurse: bool) -> Iterator[nn.Module]:
    return iter(module.modules()) if recurse else iter([module])


@contextmanager
def without_sharded_parameters(module: nn.Module, recurse: bool) -> Iterator[None]:
    """Hides sharded parameters from the module and, with ``recurse``, the modules below it."""
    hidden: list[tuple[nn.Module, Parameters]] = []
    for one in _modules(module, recurse):
        listed = one._parameters
        if type(listed) is Parameters:
            hidden.append((one, listed))
            others = {name: value for name, value in listed.items() if type(value) is not ShardedParameter}
            one.__dict__["_parameters"] = others
    try:
        yield
    finally:
        for one, listed in hidden:
            listed.update(one._parameters)
            one.__dict__["_parameters"] = listed


def apply_to_sharded(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> None:
    """Does to sharded parameters what ``nn.Module._apply`` does to others: gives them the values, dtype and device of
    ``fn``'s result."""
    seen: set[int] = set()
    for one in _modules(module, recurse):
        for value in one._parameters.values():
            if type(value) is ShardedParameter and id(value) not in seen:
                seen.add(id(value))
                with torch.no_grad():
                    _take(value, fn(value))


def _take(parameter: ShardedParameter, applied: Any) -> None:
    if applied.dtype != parameter.dtype or applied.device != parameter.leaf.device:
        raise NotImplementedError("fsdp_cpp: conversion of sharded parameters")
    if applied is not parameter:
        parameter.copy_(applied)

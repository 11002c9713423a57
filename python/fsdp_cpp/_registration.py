"""Parameters and modules that are registered after fully_shard."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from fsdp_cpp._parameters import Parameters, may_hold_sharded
from fsdp_cpp._sharded_parameter import ShardedParameter, sharded_parameter_of


def _on_parameter(module: nn.Module, name: str, parameter: torch.Tensor) -> None:
    """Lets a sharded parameter be listed as such in whichever module it is registered (tied weights, parametrizations);
    warns of others in a sharded module."""
    if isinstance(module, torch.fx.GraphModule) or torch._guards.TracingContext.try_get() is not None:
        return  # a graph that is being compiled computes with whole parameters
    if type(parameter) is ShardedParameter or sharded_parameter_of(parameter) is not None:
        may_hold_sharded(module)
    elif type(module._parameters) is Parameters and type(dict.get(module._parameters, name)) is not ShardedParameter:
        _warn_of_unsharded(module, name, [parameter])


def _on_module(module: nn.Module, name: str, submodule: nn.Module | None) -> None:
    if submodule is not None and type(module.__dict__.get("_parameters")) is Parameters:
        _warn_of_unsharded(module, name, submodule.parameters())


def _warn_of_unsharded(module: nn.Module, name: str, parameters: Iterable[torch.Tensor]) -> None:
    if any(parameter.requires_grad and type(parameter) is not ShardedParameter for parameter in parameters):
        warnings.warn(
            f"fsdp_cpp: '{name}' was registered in {type(module).__name__} after fully_shard: its parameters are not "
            "sharded, and their gradients are not reduced over the ranks. Register them before fully_shard, or call "
            "fully_shard on the new module",
            stacklevel=4,
        )


def install() -> None:
    """Watches registrations in all modules of this process."""
    register_module_parameter_registration_hook(_on_parameter)
    register_module_module_registration_hook(_on_module)

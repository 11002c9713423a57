"""Parameters that were sharded on the device meta, and have no values yet."""

from __future__ import annotations

from typing import Any

from torch import nn

from fsdp_cpp._sharded_parameter import ShardedParameter, sharded_parameter_of


def parameters_on_meta(modules: list[nn.Module]) -> list[nn.Parameter]:
    """The parameters on meta that are about to be sharded."""
    return [
        parameter
        for module in modules
        for parameter in module.parameters()
        if not isinstance(parameter, ShardedParameter) and parameter.is_meta
    ]


def mark_without_values(modules: list[nn.Module], were_on_meta: list[nn.Parameter]) -> None:
    """Marks the sharded parameters of these whole ones, and lets forward of the modules check that they were written to
    since."""
    if not were_on_meta:
        return
    for whole in were_on_meta:
        sharded = sharded_parameter_of(whole)
        if sharded is not None:  # an ignored one has none
            sharded.mark_without_values()
    for module in modules:
        _check_before_forward(module)


def _check_before_forward(module: nn.Module) -> None:
    def check(_: nn.Module, args: Any) -> None:
        missing = [name for name, parameter in module.named_parameters() if parameter.is_meta]
        if missing:
            raise RuntimeError(
                "FSDP parameters should be materialized from meta device before training, but the following were still "
                f"on meta device: {missing}. Call module.to_empty(device) and then initialise the parameters, or load "
                "a state dict"
            )
        handle.remove()

    handle = module.register_forward_pre_hook(check, prepend=True)

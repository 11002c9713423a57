"""Parameters that were sharded on the device meta, and have no values yet."""

from __future__ import annotations

from typing import Any

from torch import nn

from fsdp_cpp._sharded_parameter import ShardedParameter, sharded_parameter_of
from fsdp_cpp._tree import is_annotated


def parameters_on_meta(modules: list[nn.Module]) -> list[nn.Parameter]:
    """The parameters on meta that are about to be sharded."""
    return [
        parameter
        for module in modules
        for parameter in module.parameters()
        if not isinstance(parameter, ShardedParameter) and parameter.is_meta
    ]


def mark_without_values(modules: list[nn.Module], were_on_meta: list[nn.Parameter]) -> None:
    """Marks the sharded parameters of these whole ones, and lets forward of the modules check that all parameters below
    them, also of units that were made before, were written to since."""
    for whole in were_on_meta:
        sharded = sharded_parameter_of(whole)
        if sharded is not None:  # an ignored one has none
            sharded.mark_without_values()
    for module in modules:
        if any(parameter.is_meta for parameter in module.parameters()):
            _check_before_forward(module)


def _check_before_forward(module: nn.Module) -> None:
    def check(_: nn.Module, args: Any) -> None:
        missing = _without_values(module)
        if missing:
            of_unit, others = missing[0], sum(len(names) for names in missing[1:])
            raise RuntimeError(
                "FSDP parameters should be materialized from meta device before training, but the following were still "
                f"on meta device: {of_unit}{f', and {others} of other units' if others else ''}. Call "
                "module.to_empty(device) and then initialise the parameters, or load a state dict"
            )
        handle.remove()

    handle = module.register_forward_pre_hook(check, prepend=True)


def _without_values(module: nn.Module) -> list[list[str]]:
    """The names of the parameters that are still on meta, for each unit that has any; outer units come first, as in
    PyTorch's error."""
    of_unit: dict[str, list[str]] = {name: [] for name, one in module.named_modules() if is_annotated(one)}
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            unit = max((unit for unit in of_unit if not unit or name.startswith(unit + ".")), key=len)
            of_unit[unit].append(name)
    return [names for names in of_unit.values() if names]

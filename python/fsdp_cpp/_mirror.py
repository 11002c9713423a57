"""Trees of modules as the library sees them."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from fsdp_cpp._parameters import whole_parameters

# Mirrors of modules that fully_shard was called on: the library knows them by their identity.
_annotated: weakref.WeakKeyDictionary[nn.Module, torch.ScriptObject] = weakref.WeakKeyDictionary()


def mirror_of(module: nn.Module) -> torch.ScriptObject:
    """The mirror of a module that fully_shard was called on."""
    return _annotated[module]


def annotated_modules() -> list[nn.Module]:
    """All modules that fully_shard was called on and that still exist."""
    return list(_annotated)


def build_mirror(module: nn.Module) -> torch.ScriptObject:
    """Returns the mirror of a module and of all modules below it, with their present parameters and buffers. Modules
    that are registered several times have one mirror."""
    return _build(module, {}, of_state=False)


def build_state_mirror(module: nn.Module) -> torch.ScriptObject:
    """Returns a new tree like that of :func:`build_mirror`, with the buffers that a state dict would have: those that
    fully_shard was called on keep the buffers of that time in their own mirrors."""
    return _build(module, {}, of_state=True)


def annotate(module: nn.Module, mirror: torch.ScriptObject) -> None:
    """Keeps the mirror of a module that fully_shard is called on."""
    _annotated[module] = mirror


def _build(module: nn.Module, built: dict[nn.Module, torch.ScriptObject], of_state: bool) -> torch.ScriptObject:
    if module in built:
        return built[module]
    mirror = None if of_state else _annotated.get(module)
    if mirror is None:
        mirror = torch.classes.fsdp_cpp.Module(type(module).__name__)
    built[module] = mirror
    below = {name: _unwrapped(child) for name, child in module._modules.items() if child is not None}
    children = {name: _build(child, built, of_state) for name, child in below.items()}
    parameters = whole_parameters(module)
    left_out = module._non_persistent_buffers_set if of_state else set()
    buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and name not in left_out}
    mirror.set(
        list(parameters),
        list(parameters.values()),
        list(buffers),
        list(buffers.values()),
        list(children),
        list(children.values()),
    )
    return mirror


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module inside FullyShardedDataParallel: names of units and parameters do not mention the wrapper."""
    return module._modules["_fsdp_wrapped_module"] if getattr(type(module), "is_fsdp_cpp_wrapper", False) else module

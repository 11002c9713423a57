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
    return _build(module, {})


def annotate(module: nn.Module, mirror: torch.ScriptObject) -> None:
    """Keeps the mirror of a module that fully_shard is called on."""
    _annotated[module] = mirror


def _build(module: nn.Module, built: dict[nn.Module, torch.ScriptObject]) -> torch.ScriptObject:
    if module in built:
        return built[module]
    mirror = _annotated.get(module)
    if mirror is None:
        mirror = torch.classes.fsdp_cpp.Module(type(module).__name__)
    built[module] = mirror
    children = {name: _build(_unwrapped(child), built) for name, child in module._modules.items() if child is not None}
    parameters = whole_parameters(module)
    buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
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

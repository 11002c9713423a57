"""Which modules of a model fully_shard was called on, and which of them share an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fsdp_cpp._mirror import annotated_modules

_STATE = "_fsdp_cpp_state"


def state_of(module: nn.Module) -> Any:
    """The state that fully_shard has given to a module."""
    return module.__dict__[_STATE]


def is_annotated(module: nn.Module) -> bool:
    """Whether fully_shard was called on this very module."""
    return _STATE in module.__dict__


def set_state(module: nn.Module, state: Any) -> None:
    module.__dict__[_STATE] = state


def sharded_of(module: nn.Module) -> torch.ScriptObject | None:
    """The handle of the module's tree; None if nothing below the module has parameters."""
    return state_of(module).sharded


def annotated_at(module: nn.Module, recurse: bool) -> list[nn.Module]:
    """The annotated modules with parameters among the module and, with ``recurse``, the modules below it."""
    modules = module.modules() if recurse else [module]
    return [one for one in modules if is_annotated(one) and sharded_of(one) is not None]


def covers_tree(modules: list[nn.Module]) -> bool:
    """Whether these annotated modules are all that belong to the engine of the first one."""
    tree = sharded_of(modules[0]).identity()  # type: ignore[union-attr]
    covered = set(modules)
    return all(one in covered for one in annotated_modules() if is_annotated(one) and _is_of(one, tree))


def is_root(module: nn.Module) -> bool:
    """Whether no annotated module above this one belongs to its tree."""
    below = annotated_at(module, recurse=True)
    return not below or covers_tree(below)


def _is_of(module: nn.Module, tree: int) -> bool:
    sharded = sharded_of(module)
    return sharded is not None and sharded.identity() == tree

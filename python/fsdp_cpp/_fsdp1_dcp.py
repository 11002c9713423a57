"""torch.distributed.checkpoint.state_dict over modules under FullyShardedDataParallel.

Its functions ask ``FSDP``, PyTorch's class, for the wrapped modules in a tree, and take everything else for whole
tensors. This rank's parts would be saved as if they were whole parameters' states, and those of one rank would be
loaded on all. The functions therefore see both classes, whether fsdp_cpp.install() was called or not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as PyTorchs

from fsdp_cpp._fsdp1_state_dict import in_dtensors, named_managed


def install(ours: type[nn.Module]) -> None:
    """Lets the functions of torch.distributed.checkpoint.state_dict see modules of this package's class. Called when
    the first one is made; more calls change nothing."""
    functions: Any = importlib.import_module("torch.distributed.checkpoint.state_dict")
    if isinstance(functions.FSDP, _BothClasses):
        return
    functions.FSDP = _both_classes(ours)
    functions._get_fqns = _with_flat_parameters(functions._get_fqns)
    state_of = "_get_module_fsdp_state_if_fully_sharded_module"
    setattr(functions, state_of, _own_state(getattr(functions, state_of), ours))


class _BothClasses(type):
    """A class of which modules of PyTorch's class and of this package's are instances."""

    classes: tuple[type, ...] = ()

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.classes)


def _both_classes(ours: Any) -> type:
    def of(model: nn.Module) -> Any:
        return ours if any(isinstance(module, ours) for module in model.modules()) else PyTorchs

    class FSDP(metaclass=_BothClasses):
        classes = (PyTorchs, ours)

        @staticmethod
        def fsdp_modules(module: nn.Module) -> list[nn.Module]:
            return of(module).fsdp_modules(module)

        @staticmethod
        @contextmanager
        def state_dict_type(module: nn.Module, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
            kind = of(module)
            # DTensors, because DCP's planner for loading loses ShardedTensors on ranks that have no rows of them.
            states = kind.fsdp_modules(module) if kind is ours else []
            with in_dtensors(states), kind.state_dict_type(module, *args, **kwargs):
                yield

        @staticmethod
        def optim_state_dict(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return of(model).optim_state_dict(model, *args, **kwargs)

        @staticmethod
        def optim_state_dict_to_load(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return of(model).optim_state_dict_to_load(model, *args, **kwargs)

    return FSDP


def _own_state(function: Callable[[nn.Module], Any], ours: type[nn.Module]) -> Callable[[nn.Module], Any]:
    def state_of(module: nn.Module) -> Any:
        return module if isinstance(module, ours) else function(module)

    return state_of


# -- names of the parameters in a FlatParameter --


def name_flat_parameters(state: Any) -> None:
    """Tells each FlatParameter of a module the names of its original parameters below the wrapped module. One that is
    registered several times has its first name only."""
    seen: set[int] = set()
    for name, one in named_managed(state):
        if one.is_flat and id(one.whole) not in seen:
            seen.add(id(one.whole))
            names: list[str] = one.leaf.__dict__.setdefault("_fqns", [])
            names.append(name)


def _with_flat_parameters(get_fqns: Callable[..., set[str]]) -> Callable[..., set[str]]:
    """Gives the names of original parameters for that of a FlatParameter, of which a unit may have several."""

    def get(model: nn.Module, name: str, *args: Any, **kwargs: Any) -> set[str]:
        flat = _flat_parameter(model, name)
        if flat is None:
            return get_fqns(model, name, *args, **kwargs)
        path = name.rpartition(".")[0]
        fqns: set[str] = set()
        for below in flat._fqns:
            fqns |= get_fqns(model, f"{path}.{below}", *args, **kwargs)
        return fqns

    return get


def _flat_parameter(model: nn.Module, name: str) -> Any:
    """This package's FlatParameter of a name; None if the name is another tensor's."""
    path, _, last = name.rpartition(".")
    if not last.startswith("_flat_param") or not path:
        return None
    found = model.get_submodule(path)._parameters.get(last)
    return found if type(found) is torch.Tensor and hasattr(found, "_fqns") else None  # PyTorch's has a class

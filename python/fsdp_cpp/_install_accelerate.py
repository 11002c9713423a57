"""accelerate on CPUs: FSDP where it was asked for, in the place of DDP.

accelerate has a branch for FSDP that GPUs and their kind reach, but several processes on CPUs do not: it leaves them
with DDP. The Trainer and TRL choose through accelerate.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_MODULE = "accelerate.state"

_originals: dict[type, Callable[..., None]] = {}  # __init__ of the classes that are patched


def choose_fsdp_on_cpus(on: bool) -> None:
    """Patches accelerate, which may not be imported yet, or restores it."""
    _restore()
    if on and _MODULE in sys.modules:
        _patch(sys.modules[_MODULE])
    elif on:
        sys.meta_path.insert(0, _finder)


def _restore() -> None:
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for patched, original in _originals.items():
        patched.__init__ = original  # type: ignore[misc]
    _originals.clear()


def _patch(state: ModuleType) -> None:
    _wrap(state.PartialState, _on_cpu)
    _wrap(state.AcceleratorState, functools.partial(_with_fsdp, state))


def _wrap(patched: type, make: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    original = _originals[patched] = patched.__init__  # type: ignore[misc]
    patched.__init__ = functools.wraps(original)(make(original))  # type: ignore[misc]


def _on_cpu(original: Callable[..., None]) -> Callable[..., None]:
    """PartialState.__init__ that computes on CPUs, whether or not it is told to."""

    def __init__(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        original(self, True, **kwargs)

    return __init__


def _with_fsdp(state: ModuleType, original: Callable[..., None]) -> Callable[..., None]:
    """AcceleratorState.__init__ that treats several processes on CPUs as it treats GPUs."""

    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        plugin = signature.bind(self, *args, **kwargs).arguments.get("fsdp_plugin")
        is_first = not state.AcceleratorState._shared_state
        original(self, *args, **kwargs)
        on_cpus = self.distributed_type == state.DistributedType.MULTI_CPU
        if is_first and on_cpus and (plugin is not None or _is_asked_for()):
            _choose_fsdp(state, self, plugin)

    return __init__


def _is_asked_for() -> bool:
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def _choose_fsdp(state: ModuleType, chosen: Any, plugin: Any) -> None:
    chosen.distributed_type = state.DistributedType.FSDP
    if plugin is not None and chosen._mixed_precision != "no":
        plugin.set_mixed_precision(chosen._mixed_precision)
    chosen.fsdp_plugin = plugin
    state.PartialState._shared_state["distributed_type"] = chosen.distributed_type


class _Finder(importlib.abc.MetaPathFinder):
    """Patches accelerate when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # for the search below, and because it has done its work
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module as another loader does, and patches it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _patch(module)


_finder = _Finder()

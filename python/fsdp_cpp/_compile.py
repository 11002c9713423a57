"""torch.compile over sharded modules.

Code that inductor generates reads memory without operators, so the engine does not see which parameters it uses. While
a compiled graph runs, the units of its arguments are therefore kept gathered, as the dispatcher keeps them around one
operator. The arguments of backward graphs, which may be views of parameters, are treated alike. Backends that run
operators (eager, aot_eager) need none of this.

The classes of compiled graphs are changed, and not the functions that make them, because graphs may come from caches.
Inductor is imported by the first compilation, so they are changed right after that import.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

_sharded_class = torch.classes.fsdp_cpp.Sharded
_whole_class = torch.classes.fsdp_cpp.Whole

ALIGNMENT = 16  # bytes; inductor's kernels for accelerators assume it of their arguments


def install() -> None:
    """Makes inductor's graphs gather the parameters that they use: now if inductor is loaded, else once it is."""
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# -- graphs --


def _change_graphs(output_code: ModuleType) -> None:
    for graph_class in (output_code.CompiledFxGraph, output_code.CompiledAOTI):
        graph_class.__call__ = _with_gathered_arguments(graph_class.__call__)
    output_code.CompiledFxGraph.post_compile = _noting_cuda_graphs(output_code.CompiledFxGraph.post_compile)


def _with_gathered_arguments(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(graph: Any, inputs: Any) -> Any:
        units = _sharded_class.enter([value for value in inputs if isinstance(value, torch.Tensor)])
        if not units:
            return call(graph, inputs)
        try:
            return call(graph, _checked(graph, inputs))
        finally:
            _sharded_class.leave(units)

    return wrapped


def _checked(graph: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a graph that uses gathered parameters, copied where its code could not read them."""
    if getattr(graph, "_fsdp_cpp_cuda_graphs", False):
        raise NotImplementedError(
            "fsdp_cpp: CUDA graphs cannot use sharded parameters, whose addresses change whenever they are gathered. "
            'Compile without mode="reduce-overhead" and without torch._inductor.config.triton.cudagraphs'
        )
    for index in getattr(graph, "mutated_input_idxs", ()):
        value = inputs[index]
        if isinstance(value, torch.Tensor) and _whole_class.is_whole(value):
            raise NotImplementedError(
                f"fsdp_cpp: a compiled graph writes to parameter '{_whole_class.fqn(value)}' of a sharded module; "
                "write to it outside the compiled function, where the write reaches the shards"
            )
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.device.type != "cpu" and _whole_class.is_whole(value):
            inputs[index] = aligned(value)  # type: ignore[index]
    return inputs


def aligned(value: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy with the same strides if its memory does not begin at a multiple of ALIGNMENT. Gathered
    parameters follow one another without gaps."""
    if value.data_ptr() % ALIGNMENT == 0:
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _noting_cuda_graphs(post_compile: Callable[..., Any]) -> Callable[..., Any]:
    """Notes on graphs whether they run as CUDA graphs. The choice is final after post_compile, which also runs for
    graphs from caches."""

    @functools.wraps(post_compile)
    def wrapped(graph: Any, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        post_compile(graph, example_inputs, constants, graph_kwargs)
        cuda = "cuda" in graph.device_types
        graph._fsdp_cpp_cuda_graphs = cuda and bool(graph_kwargs["cudagraphs"])

    return wrapped


# -- freezing --


def _change_freezing(freezing: ModuleType) -> None:
    freezing.freeze = _refusing_sharded_parameters(freezing.freeze)


def _refusing_sharded_parameters(freeze: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(freeze)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = torch._guards.TracingContext.try_get()
        for value in (context.params_flat if context is not None else None) or ():
            if isinstance(value, torch.Tensor) and _whole_class.is_whole(value):
                raise NotImplementedError(
                    "fsdp_cpp: torch._inductor.config.freezing makes constants of parameters, so that every rank would "
                    f"keep all of '{_whole_class.fqn(value)}'; compile sharded modules without it"
                )
        return freeze(*args, **kwargs)

    return wrapped


# -- imports --

_CHANGES = {"torch._inductor.output_code": _change_graphs, "torch._inductor.freezing": _change_freezing}


class _Finder(importlib.abc.MetaPathFinder):
    """Lets others find the modules in _CHANGES, and changes them after their import."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in _CHANGES:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module = _changing(spec.loader.exec_module, _CHANGES[name])  # type: ignore[method-assign]
                return spec
        return None


def _changing(exec_module: Callable[..., None], change: Callable[[ModuleType], None]) -> Callable[..., None]:
    def wrapped(module: ModuleType) -> None:
        exec_module(module)
        change(module)

    return wrapped

"""Hooks of Tensor.register_post_accumulate_grad_hook on sharded parameters, called when their unit is reduced."""

from __future__ import annotations

import ctypes
import functools
import traceback
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from fsdp_cpp._sharded_parameter import ShardedParameter

_classes = torch.classes.fsdp_cpp
_Callback = ctypes.CFUNCTYPE(ctypes.c_int)

# Weak references to the parameters that have had hooks, by their leaves.
_hooked: WeakIdKeyDictionary = WeakIdKeyDictionary()

# The C functions that trees of units call, by the trees' identities.
_installed: dict[int, int] = {}


def call_hooks_when_reduced(parameter: ShardedParameter) -> None:
    """Lets the engine call the hooks of a sharded parameter, which torch keeps, after each reduction of its unit."""
    if parameter.leaf not in _hooked:
        parameter.origin.tree_hooks = _TreeHooks(_classes.Sharded.of(parameter.whole))
        _hooked[parameter.leaf] = weakref.ref(parameter)
        # Other parameters of the unit may get gradients where this one keeps an old one.
        parameter.whole.register_hook(functools.partial(_note_gradient, weakref.ref(parameter)))


def keep_calling_hooks(parameters: Iterable[torch.Tensor]) -> None:
    """Renews :func:`call_hooks_when_reduced` for those parameters that have hooks, after their tree of units has become
    part of another one."""
    for parameter in parameters:
        origin = parameter.__dict__.get("_origin")
        if origin is not None and origin.tree_hooks is not None:
            origin.tree_hooks.install()


class _TreeHooks:
    """Calls the hooks of all parameters of a tree. Lives as long as a parameter that has hooks."""

    def __init__(self, sharded: Any) -> None:
        failure = _Failure()
        callback = _Callback(lambda: _on_unit_reduced(sharded, failure))
        self._sharded = sharded
        self._address = ctypes.cast(callback, ctypes.c_void_p).value
        # The engine may outlive the parameter, so the function must be removed before it is freed.
        weakref.finalize(self, _remove, sharded, self._address, callback).atexit = False
        self.install()

    def install(self) -> None:
        identity = self._sharded.identity()
        self._sharded.set_unit_reduced_hook(self._address)
        _installed[identity] = self._address


def _remove(sharded: Any, address: int, callback: Any) -> None:
    identity = sharded.identity()
    if _installed.get(identity) == address:
        sharded.set_unit_reduced_hook(0)
        del _installed[identity]


class _Failure:
    """An exception of a hook, which is raised when the backward that called the hook ends."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._backward = -1

    def is_of_this_backward(self) -> bool:
        return self._error is not None and self._backward == torch._C._current_graph_task_id()

    def keep(self, error: BaseException) -> None:
        """Throws RuntimeError outside of backward."""
        torch.autograd.Variable._execution_engine.queue_callback(self._raise)
        self._error, self._backward = error, torch._C._current_graph_task_id()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _on_unit_reduced(sharded: Any, failure: _Failure) -> int:
    """Returns 0, or 1 to let the engine throw."""
    if failure.is_of_this_backward():
        return 0
    try:
        for leaf in sharded.reduced_leaves():
            reference = _hooked.get(leaf)
            parameter = reference() if reference is not None else None
            if parameter is not None:
                _call_hooks(parameter)
    except BaseException as error:
        try:
            failure.keep(error)
        except RuntimeError:
            traceback.print_exception(error)
            return 1
    return 0


def _note_gradient(reference: weakref.ref[ShardedParameter], gradient: torch.Tensor) -> None:
    parameter = reference()
    if parameter is not None:
        parameter.origin.has_new_gradient = True


def _call_hooks(parameter: ShardedParameter) -> None:
    origin = parameter.origin
    has_new_gradient, origin.has_new_gradient = origin.has_new_gradient, False
    hooks = parameter._post_accumulate_grad_hooks
    if hooks and has_new_gradient:
        for hook in list(hooks.values()):
            hook(parameter)

"""Optimizers of torch.optim over sharded parameters: a step on the shards themselves.

An optimizer of torch.optim collects parameters, gradients and states in lists and hands them to a function (``adam``
for Adam and AdamW, ``sgd`` for SGD). For lists that hold sharded parameters, these functions are wrapped:

- Functions that work element by element get the local tensors in the place of the DTensors. Nothing else changes:
  ``optimizer.param_groups`` and ``optimizer.state`` hold DTensors at all times, in hooks and after an exception as
  well. DTensor's dispatch, which costs more than the arithmetic, is left out.
- Functions whose result for one element depends on others (Muon, Adafactor) get whole tensors, one parameter at a time,
  of which each rank keeps its rows. The result is that of one process.

LBFGS has no such function; its two methods that read and write parameters are wrapped instead. Lists without sharded
parameters and ``differentiable=True`` take the way that they take without this module. torch.compile of a step over
sharded parameters is refused, and so is a step of an optimizer that was made before fully_shard.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.optim._functional  # before the wrappers: torch.distributed.optim compiles the functions in it
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fsdp_cpp._sharded_parameter import ShardedParameter, number_of_sharded_parameters, sharded_parameter_of

_prepare_writes = torch.classes.fsdp_cpp.Whole.prepare_writes
_settle = torch.classes.fsdp_cpp.Gradients.settle

# Modules of torch.optim, each with a function of the same name.
_ELEMENTWISE = ("adadelta", "adagrad", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd")
_WHOLE = ("_adafactor", "_muon")


def install() -> None:
    """Wraps the functions of torch.optim. Called once, when the package is imported."""
    for name in _ELEMENTWISE:
        _wrap(importlib.import_module(f"torch.optim.{name}"), name, _on_local_tensors)
    for name in _WHOLE:
        _wrap(importlib.import_module(f"torch.optim.{name}"), name.removeprefix("_"), _on_whole_tensors)
    _wrap(torch.optim.LBFGS, "_gather_flat_grad", _gather_whole_gradients)
    _wrap(torch.optim.LBFGS, "_add_grad", _add_whole_direction)
    for scaler in (torch.amp.GradScaler, ShardedGradScaler):
        _wrap(scaler, "_unscale_grads_", _unscale_settled)
    register_optimizer_step_pre_hook(_before_step)


def _wrap(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(owner, name, wrapper(getattr(owner, name)))


def _holds_sharded(parameters: Iterable[Any]) -> bool:
    return any(type(parameter) is ShardedParameter for parameter in parameters)


# -- element by element --


def _on_local_tensors(function: Callable[..., None]) -> Callable[..., None]:
    """Lets an elementwise function of torch.optim work on local tensors.

    Its first arguments are lists that belong together: at each position a parameter, its gradient and its states.
    """

    @functools.wraps(function)
    def step(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        if kwargs.get("differentiable") or not _holds_sharded(params):
            return function(params, *args, **kwargs)
        given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, list) and len(arg) == len(params)]
        local = _local_lists(params, given)
        if local is None:
            return function(params, *args, **kwargs)
        stand_ins = {id(values): stand_in for values, stand_in in zip(given, local, strict=True)}
        args = tuple(stand_ins.get(id(arg), arg) for arg in args)
        kwargs = {name: stand_ins.get(id(arg), arg) for name, arg in kwargs.items()}
        before = [list(values) for values in local]
        leaves = [parameter.leaf for parameter in params if type(parameter) is ShardedParameter]
        _prepare_writes(leaves)
        try:
            function([_local(parameter) for parameter in params], *args, **kwargs)
        finally:
            # Fused kernels do not count their writes.
            torch.autograd.graph.increment_version(leaves)
        for values, stand_in, old in zip(given, local, before, strict=True):
            _give_back(params, values, stand_in, old)

    return step


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter._local_tensor if type(parameter) is ShardedParameter else parameter


def _local_lists(params: list[torch.Tensor], given: list[list[Any]]) -> list[list[Any]] | None:
    """Copies of lists, with local tensors at the positions of sharded parameters. None if a tensor does not lie as its
    parameter does: DTensor then knows what to do, or says that it does not."""
    local = [list(values) for values in given]
    specs = [parameter._spec if type(parameter) is ShardedParameter else None for parameter in params]
    for values in local:
        for position, (value, spec) in enumerate(zip(values, specs, strict=True)):
            if spec is None:
                continue
            if isinstance(value, DTensor):
                if value._spec is not spec and not _lies_like(value, params[position]):
                    return None
                values[position] = value._local_tensor
            elif isinstance(value, torch.Tensor) and value.numel() != 1:
                return None
    return local


def _lies_like(value: DTensor, parameter: ShardedParameter) -> bool:
    """Whether a tensor is cut as a parameter is."""
    spec, own = parameter._spec, value._spec
    return (
        (own.mesh is spec.mesh or own.mesh == spec.mesh)
        and own.placements == spec.placements
        and value._local_tensor.shape == parameter._local_tensor.shape
    )


def _give_back(params: list[torch.Tensor], given: list[Any], local: list[Any], before: list[Any]) -> None:
    """Writes to the caller's list those tensors that the function has replaced, such as SGD's first momentum."""
    for position, (new, old) in enumerate(zip(local, before, strict=True)):
        if new is not old:
            parameter = params[position]
            wraps = type(parameter) is ShardedParameter and isinstance(new, torch.Tensor)
            given[position] = DTensor(new, parameter._spec, requires_grad=False) if wraps else new


# -- whole tensors --


def _on_whole_tensors(function: Callable[..., None]) -> Callable[..., None]:
    """Lets a function of torch.optim work on whole tensors, one sharded parameter at a time. Collective."""

    @functools.wraps(function)
    def step(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not _holds_sharded(params):
            return function(params, *args, **kwargs)

        def at(position: int, value: Any) -> Any:
            belongs = isinstance(value, list) and len(value) == len(params)
            return [_whole(value[position])] if belongs else value

        for position, parameter in enumerate(params):
            own_args = [at(position, arg) for arg in args]
            own_kwargs = {name: at(position, arg) for name, arg in kwargs.items()}
            whole = _whole(parameter)
            function([whole], *own_args, **own_kwargs)
            _keep_rows(parameter, whole)
            for arg, own in zip((*args, *kwargs.values()), (*own_args, *own_kwargs.values()), strict=True):
                if own is not arg:
                    _keep_rows(arg[position], own[0])

    return step


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _keep_rows(value: Any, whole: Any) -> None:
    """Writes this rank's part of a whole tensor to the DTensor that it was made from."""
    if type(value) is ShardedParameter:
        value.copy_(whole)
    elif isinstance(value, DTensor):
        value._local_tensor.copy_(local_part(whole, value))


def local_part(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's part of a whole tensor that is the same on all ranks, cut as ``like`` is. Does not communicate."""
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)._local_tensor


# -- LBFGS --


def _gather_whole_gradients(method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """LBFGS takes inner products over all parameters: it gets whole gradients, and keeps its history whole."""

    @functools.wraps(method)
    def gather(self: torch.optim.LBFGS) -> torch.Tensor:
        if not _holds_sharded(self._params):
            return method(self)
        gradients = [SimpleNamespace(grad=_whole_gradient(parameter)) for parameter in self._params]
        return method(SimpleNamespace(_params=gradients, param_groups=self.param_groups))

    return gather


def _whole_gradient(parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    return _whole(parameter.grad)


def _add_whole_direction(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def add(self: torch.optim.LBFGS, step_size: Any, direction: torch.Tensor) -> None:
        if not _holds_sharded(self._params):
            return method(self, step_size, direction)
        numbers = [parameter.numel() * (1 + parameter.is_complex()) for parameter in self._params]
        for parameter, part in zip(self._params, direction.split(numbers), strict=True):
            if parameter.is_complex():
                part = torch.view_as_complex(part.view(-1, 2))
            _add(parameter, part.view(parameter.shape), step_size)

    return add


def _add(parameter: torch.Tensor, whole: torch.Tensor, factor: Any) -> None:
    if isinstance(parameter, DTensor):
        whole = DTensor(local_part(whole, parameter), parameter._spec, requires_grad=False)
    parameter.add_(whole, alpha=factor)


# -- gradient scalers --


def _unscale_settled(method: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a scaler's method, which reads and divides gradients before the step, wait for reductions in flight."""

    @functools.wraps(method)
    def unscale(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        _settle_gradients(parameters)
        return method(self, optimizer, *args, **kwargs)

    return unscale


def _settle_gradients(parameters: list[torch.Tensor]) -> None:
    """Waits for reductions in flight of sharded parameters among these."""
    wholes = [parameter.whole for parameter in parameters if type(parameter) is ShardedParameter]
    if wholes:
        _settle(wholes)


# -- before each step --

# For each optimizer that was looked at: the numbers of sharded parameters and of its own parameters at that time.
_looked_at: WeakKeyDictionary[torch.optim.Optimizer, tuple[int, ...]] = WeakKeyDictionary()


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not number_of_sharded_parameters():
        return
    if torch.compiler.is_compiling():
        _refuse_compilation(optimizer)
    else:
        _settle_and_check(optimizer)


@torch._disable_dynamo
def _refuse_compilation(optimizer: torch.optim.Optimizer) -> None:
    if any(_holds_sharded(group["params"]) for group in optimizer.param_groups):
        raise NotImplementedError(
            f"fsdp_cpp: torch.compile of {type(optimizer).__name__}.step over sharded parameters is not supported, "
            "because their gradients are the engine's; call optimizer.step itself"
        )


@torch._disable_dynamo
def _settle_and_check(optimizer: torch.optim.Optimizer) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    _settle_gradients(parameters)
    now = (number_of_sharded_parameters(), *(len(group["params"]) for group in optimizer.param_groups))
    if _looked_at.get(optimizer) != now:
        _refuse_whole_parameters(optimizer, parameters)
        _looked_at[optimizer] = now


def _refuse_whole_parameters(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
    """Refuses a step of an optimizer that was made before fully_shard: its parameters have no gradients any more, so it
    would change nothing."""
    for parameter in parameters:
        if type(parameter) is not ShardedParameter and sharded_parameter_of(parameter) is not None:
            raise RuntimeError(
                f"fsdp_cpp: {type(optimizer).__name__} holds a whole parameter, of shape {tuple(parameter.shape)}, of "
                "a sharded module; its gradient belongs to the sharded one. Make the optimizer after fully_shard, from "
                "module.parameters()"
            )

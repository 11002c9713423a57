"""Casts at the boundaries of a module: MixedPrecisionPolicy.cast_forward_inputs and output_dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.utils import _apply_to_tensors


def _cast(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype) if torch.is_floating_point(tensor) and tensor.dtype != dtype else tensor


def cast_inputs_of(module: nn.Module, dtype: torch.dtype) -> None:
    """Casts the floating-point tensors among the arguments of the module's forward."""

    def cast(_: nn.Module, args: Any, kwargs: Any) -> Any:
        fn = functools.partial(_cast, dtype)
        return _apply_to_tensors(fn, args), _apply_to_tensors(fn, kwargs)

    module.register_forward_pre_hook(cast, prepend=True, with_kwargs=True)


def cast_outputs_of(module: nn.Module, dtype: torch.dtype) -> None:
    """Casts the floating-point tensors among the results of the module's forward."""

    def cast(_: nn.Module, args: Any, result: Any) -> Any:
        return _apply_to_tensors(functools.partial(_cast, dtype), result)

    module.register_forward_hook(cast)


def with_casts(
    method: Callable[..., Any], inputs: torch.dtype | None, outputs: torch.dtype | None
) -> Callable[..., Any]:
    """Returns a method of a module whose arguments and results are cast as forward's are."""

    @functools.wraps(method)
    def wrapped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if inputs is not None:
            fn = functools.partial(_cast, inputs)
            args, kwargs = _apply_to_tensors(fn, args), _apply_to_tensors(fn, kwargs)
        result = method(*args, **kwargs)
        return _apply_to_tensors(functools.partial(_cast, outputs), result) if outputs is not None else result

    return wrapped

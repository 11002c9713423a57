"""State dicts of optimizers that hold local parts of FullyShardedDataParallel's parameters: each is one rank's own.

``optimizer.state_dict()`` has 1-D tensors of this rank, under the same numbers as other ranks' tensors. It says so, so
that a state of another rank is refused, and so is a checkpoint of all ranks in which one rank's part would stand for
the whole.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable
from typing import Any

import torch

KEY = "fsdp_cpp_part"
_ADVICE = (
    "Save FullyShardedDataParallel.optim_state_dict(model, optimizer) and load what optim_state_dict_to_load makes of "
    "it, or use get_optimizer_state_dict and set_optimizer_state_dict of torch.distributed.checkpoint.state_dict"
)


class OnePart(bytes):
    """The rank that a state dict belongs to. Whoever unpickles one gets bytes, without this package as well."""

    def __create_write_items__(self, fqn: str, value: Any) -> Any:
        """Refuses what torch.distributed.checkpoint asks of values when it saves."""
        raise RuntimeError(
            f"fsdp_cpp: torch.distributed.checkpoint cannot save optimizer.state_dict() (here of {self.decode()}), "
            "because it has this rank's parts of parameters under FullyShardedDataParallel, and those of one rank "
            f"would be saved for all. {_ADVICE}"
        )

    def __deepcopy__(self, memo: Any) -> OnePart:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return codecs.encode, (self.decode("latin1"), "latin1")


def mark(leaf: torch.Tensor, rank: int, ranks: int) -> None:
    """Records that a tensor is one rank's part of a parameter, or of several."""
    if ranks > 1:
        leaf._fsdp_cpp_part = f"rank {rank} of {ranks}".encode()  # type: ignore[attr-defined]


def install() -> None:
    """Watches state dicts of all optimizers of this process. Called once, when the package is imported."""
    optimizer: Any = torch.optim.Optimizer
    optimizer.state_dict = _marking(optimizer.state_dict)
    optimizer.load_state_dict = _checking(optimizer.load_state_dict)


def _part_of(optimizer: torch.optim.Optimizer) -> bytes | None:
    """The rank whose parts an optimizer holds; None if it holds whole parameters or DTensors."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return next((one._fsdp_cpp_part for one in parameters if hasattr(one, "_fsdp_cpp_part")), None)


def _marking(method: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @functools.wraps(method)
    def state_dict(self: torch.optim.Optimizer) -> dict[str, Any]:
        result = method(self)
        part = _part_of(self)
        if part is not None:
            result[KEY] = OnePart(part)
        return result

    return state_dict


def _checking(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def load_state_dict(self: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        saved, own = state_dict.get(KEY), _part_of(self)
        if saved is not None and saved != own:
            holds = f"parts of {own.decode()}" if own is not None else "whole parameters"
            raise ValueError(
                f"fsdp_cpp: {type(self).__name__}.load_state_dict: the state has parts of {bytes(saved).decode()}, "
                f"but this optimizer holds {holds}. {_ADVICE}"
            )
        method(self, state_dict)

    return load_state_dict

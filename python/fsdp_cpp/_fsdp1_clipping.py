"""Norms of gradients over parameters of FullyShardedDataParallel and others beside them."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch


def clip_grad_norm_(root: Any, states: list[Any], max_norm: float, norm_type: float) -> torch.Tensor:
    """Scales all gradients below a root so that their norm over all ranks is at most ``max_norm``. Returns the norm
    before, in the dtype that holds all gradients. Collective."""
    norm_type = float(norm_type)
    listed = [parameter for parameter in root.parameters() if parameter.grad is not None]
    managed = {id(one.leaf) for state in states for one in state._managed}
    others = [parameter.grad for parameter in listed if id(parameter) not in managed]
    norm = _norm(root._sharded, others, norm_type)
    scale = torch.clamp(float(max_norm) / (norm + 1e-6), max=1.0)
    for parameter in listed:
        parameter.grad.mul_(scale.to(parameter.grad.device, parameter.grad.dtype))
    if not listed:
        warnings.warn(
            f"Called FSDP.clip_grad_norm_() on rank {root.rank} with no gradients -- returning the total norm in the "
            "default dtype torch.float32",
            stacklevel=3,
        )
    dtypes = {parameter.grad.dtype for parameter in listed} or {torch.float32}
    return norm.to(root.compute_device, functools.reduce(torch.promote_types, dtypes))


def _norm(sharded: torch.ScriptObject | None, others: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of the gradients of a tree and of others, which are taken to be the same on all ranks."""
    norm = sharded.grad_norm(norm_type, False) if sharded is not None else torch.zeros((), dtype=torch.float64)
    if not others:
        return norm
    local = torch.nn.utils.get_total_norm(others, norm_type).double().cpu()
    return torch.linalg.vector_norm(torch.stack([norm, local]), norm_type)

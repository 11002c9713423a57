"""Exports of memory to other libraries through DLPack. Whoever has such memory may write to it at any time, so that the
engine must compare the rows of a sharded parameter from then on. numpy() leaves a mark of its own on the memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

_note_export = torch.classes.fsdp_cpp.Whole.note_export


def install() -> None:
    """Wraps the functions that export a tensor. Called once, when the package is imported."""
    for owner, name in (
        (torch._C, "_to_dlpack"),
        (torch._C, "_to_dlpack_versioned"),
        (torch.utils.dlpack, "to_dlpack"),
        (torch, "to_dlpack"),
    ):
        setattr(owner, name, _noted(getattr(owner, name)))


def _noted(export: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(export)
    def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _note_export(tensor)
        return export(tensor, *args, **kwargs)

    return noted

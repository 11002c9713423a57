"""Whole parameters of modules under FullyShardedDataParallel, for those who list them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from fsdp_cpp._fsdp1_parameters import LocalParameters, Managed, is_wrapped, wrapped_modules
from fsdp_cpp._fsdp1_state_dict import PREFIX, full_precision

# Trees whose parameters are shown whole at present.
_summoned: set[int] = set()


class WholeParameters(nn.Module):
    """A base class of FullyShardedDataParallel."""

    _managed: list[Managed]
    _use_orig_params: bool

    @staticmethod
    @contextmanager
    def summon_full_params(
        module: nn.Module,
        recurse: bool = True,
        writeback: bool = True,
        rank0_only: bool = False,
        offload_to_cpu: bool = False,
        with_grads: bool = False,
    ) -> Generator[None, None, None]:
        """Lists whole parameters, in the dtype of the shards, under the names that they have without wrappers.

        Collective, and not allowed in forward or backward.

        Args:
            recurse: whether modules below take part.
            writeback: whether what was written is kept; each rank keeps its part.
            rank0_only: whether other ranks list their parts only. Excludes writeback.
            offload_to_cpu: only on CPUs, where it changes nothing; refused elsewhere.
            with_grads: whether ``grad`` is whole, too. Needs ``use_orig_params=True``.
        """
        states = wrapped_modules(module)
        if not recurse:
            states = [module] if is_wrapped(module) else []
        for state in states:
            _check_summon(state, writeback, rank0_only, offload_to_cpu, with_grads)
        with ExitStack() as stack:
            for state in states:
                stack.enter_context(_scope(state, writeback, rank0_only, offload_to_cpu, with_grads))
            shown = [holder for state in states if not rank0_only or state.rank == 0 for holder in state._holders()]
            stack.enter_context(_showing_whole(shown))
            yield

    def apply(self, fn: Callable[[nn.Module], None]) -> WholeParameters:
        """Applies ``fn`` to all modules below and to this one, with whole parameters that it may write."""
        with self.summon_full_params(self, recurse=False):
            return super().apply(fn)

    def _holders(self) -> list[LocalParameters]:
        """The dictionaries of parameters of the modules whose parameters this one manages."""
        own = [self.module._parameters] if not self._use_orig_params else []
        holders = {id(holder): holder for holder in [*own, *(one.holder for one in self._managed)]}
        return [holder for holder in holders.values() if type(holder) is LocalParameters]

    def _shows_whole(self) -> bool:
        return any(holder.shows_whole for holder in self._holders())

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name.replace(PREFIX, "") if self._shows_whole() else name, parameter

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, buffer in super().named_buffers(*args, **kwargs):
            yield name.replace(PREFIX, "") if self._shows_whole() else name, buffer


def _check_summon(state: Any, writeback: bool, rank0_only: bool, offload_to_cpu: bool, with_grads: bool) -> None:
    if with_grads and (offload_to_cpu or not state._use_orig_params):
        raise NotImplementedError(
            f"with_grads={with_grads}, use_orig_params={state._use_orig_params}, offload_to_cpu={offload_to_cpu} is "
            "not supported yet"
        )
    if writeback and rank0_only:
        raise NotImplementedError("writeback=True and rank0_only=True is not supported yet")
    if state._shows_whole():
        raise AssertionError("Cannot manually unshard parameters when already unsharding parameters")


@contextmanager
def _scope(
    state: Any, writeback: bool, rank0_only: bool, offload_to_cpu: bool, with_grads: bool
) -> Generator[None, None, None]:
    """Opens the engine's scope over the tree of a module, unless it is open."""
    sharded = state._sharded
    if sharded is None or sharded.identity() in _summoned:
        yield
        return
    _summoned.add(sharded.identity())
    try:
        with full_precision(state):
            sharded.open_full_params(True, writeback, rank0_only, offload_to_cpu, with_grads)
            try:
                yield
            finally:
                sharded.close()
    finally:
        _summoned.discard(sharded.identity())


@contextmanager
def _showing_whole(holders: list[LocalParameters]) -> Generator[None, None, None]:
    for holder in holders:
        holder.shows_whole = True
    try:
        yield
    finally:
        for holder in holders:
            holder.shows_whole = False

"""The methods of FullyShardedDataParallel for state dicts, of modules and of optimizers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import OptimStateDictConfig, StateDictConfig, StateDictSettings, StateDictType

from fsdp_cpp import _fsdp1_optimizer, _fsdp1_state_dict
from fsdp_cpp._fsdp1_parameters import wrapped_modules


class StateDicts(nn.Module):
    """A base class of FullyShardedDataParallel."""

    state_dict = _fsdp1_state_dict.state_dict

    @staticmethod
    def set_state_dict_type(
        module: nn.Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: OptimStateDictConfig | None = None,
    ) -> StateDictSettings:
        """Sets the form of state dicts of all FullyShardedDataParallel modules in a tree: FULL_STATE_DICT or
        SHARDED_STATE_DICT. Returns the settings before."""
        return _fsdp1_state_dict.set_type(
            wrapped_modules(module), state_dict_type, state_dict_config, optim_state_dict_config
        )

    @staticmethod
    def get_state_dict_type(module: nn.Module) -> StateDictSettings:
        """The form of state dicts in a tree."""
        return _fsdp1_state_dict.get_type(wrapped_modules(module))

    @staticmethod
    @contextmanager
    def state_dict_type(
        module: nn.Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: OptimStateDictConfig | None = None,
    ) -> Generator[None, None, None]:
        """Like :meth:`set_state_dict_type`, until the context ends."""
        before = StateDicts.set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
        try:
            yield
        finally:
            StateDicts.set_state_dict_type(
                module, before.state_dict_type, before.state_dict_config, before.optim_state_dict_config
            )

    @staticmethod
    def optim_state_dict(
        model: nn.Module,
        optim: torch.optim.Optimizer,
        optim_state_dict: dict[str, Any] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> dict[str, Any]:
        """The state dict of an optimizer by names of original parameters, in the form of :meth:`state_dict_type`.
        Collective."""
        states = wrapped_modules(model)
        return _fsdp1_optimizer.state_dict(model, states, optim, optim_state_dict, group)

    @staticmethod
    def optim_state_dict_to_load(
        model: nn.Module,
        optim: torch.optim.Optimizer,
        optim_state_dict: dict[str, Any],
        is_named_optimizer: bool = False,
        load_directly: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> dict[str, Any]:
        """The part of a state dict, as :meth:`optim_state_dict` returns it, that ``optim.load_state_dict`` takes on
        this rank; ``load_directly`` makes that call. Collective."""
        if is_named_optimizer:
            raise NotImplementedError("fsdp_cpp: optim_state_dict_to_load: is_named_optimizer=True is not supported")
        states = wrapped_modules(model)
        result = _fsdp1_optimizer.state_dict_to_load(model, states, optim, optim_state_dict, group)
        if load_directly:
            optim.load_state_dict(result)
        return result

"""The functions for optimizer states that came before optim_state_dict, which scripts still call."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)

_FULL, _SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT


class LegacyOptimizerStates:
    """A base class of FullyShardedDataParallel."""

    @classmethod
    def full_optim_state_dict(
        cls,
        model: nn.Module,
        optim: torch.optim.Optimizer,
        optim_input: Any = None,
        rank0_only: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> dict[str, Any]:
        """The state of an optimizer by names of original parameters, whole and in host memory; empty on all ranks but
        the first if ``rank0_only``. Collective. ``optim_state_dict`` does the same and is the newer one."""
        config = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=rank0_only)
        with cls.state_dict_type(model, _FULL, FullStateDictConfig(), config):  # type: ignore[attr-defined]
            return cls.optim_state_dict(model, optim, group=group)  # type: ignore[attr-defined]

    @classmethod
    def sharded_optim_state_dict(
        cls, model: nn.Module, optim: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
    ) -> dict[str, Any]:
        """Like :meth:`full_optim_state_dict`, in parts, on all ranks."""
        configs = ShardedStateDictConfig(), ShardedOptimStateDictConfig()
        with cls.state_dict_type(model, _SHARDED, *configs):  # type: ignore[attr-defined]
            return cls.optim_state_dict(model, optim, group=group)  # type: ignore[attr-defined]

    @classmethod
    def shard_full_optim_state_dict(
        cls,
        full_optim_state_dict: dict[str, Any],
        model: nn.Module,
        optim_input: Any = None,
        optim: torch.optim.Optimizer | None = None,
    ) -> dict[str, Any]:
        """This rank's part of a whole state that all ranks have, for ``optim.load_state_dict``.

        ``optim_input`` is the first argument of the optimizer's constructor, for scripts that have no ``optim`` yet;
        without both, ``model.parameters()``.
        """
        return cls._to_load(_FULL, False, full_optim_state_dict, model, optim_input, optim, None)

    @classmethod
    def scatter_full_optim_state_dict(
        cls,
        full_optim_state_dict: dict[str, Any] | None,
        model: nn.Module,
        optim_input: Any = None,
        optim: torch.optim.Optimizer | None = None,
        group: Any = None,
    ) -> dict[str, Any]:
        """Like :meth:`shard_full_optim_state_dict`, of a state that only the first rank has. Collective."""
        return cls._to_load(_FULL, True, full_optim_state_dict or {}, model, optim_input, optim, group)

    @classmethod
    def flatten_sharded_optim_state_dict(
        cls, sharded_optim_state_dict: dict[str, Any], model: nn.Module, optim: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """Like :meth:`shard_full_optim_state_dict`, of a state in parts. Collective."""
        return cls._to_load(_SHARDED, False, sharded_optim_state_dict, model, None, optim, None)

    @classmethod
    def _to_load(
        cls,
        kind: StateDictType,
        from_rank_0: bool,
        state: dict[str, Any],
        model: nn.Module,
        optim_input: Any,
        optim: torch.optim.Optimizer | None,
        group: Any,
    ) -> dict[str, Any]:
        if kind is _FULL:
            configs: Any = FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=from_rank_0)
        else:
            configs = ShardedStateDictConfig(), ShardedOptimStateDictConfig()
        with cls.state_dict_type(model, kind, *configs):  # type: ignore[attr-defined]
            optimizer = _with_groups(model, optim_input, optim)
            return cls.optim_state_dict_to_load(model, optimizer, state, group=group)  # type: ignore[attr-defined]

    @staticmethod
    def rekey_optim_state_dict(
        optim_state_dict: dict[str, Any],
        optim_state_key_type: OptimStateKeyType,
        model: nn.Module,
        optim_input: Any = None,
        optim: torch.optim.Optimizer | None = None,
    ) -> dict[str, Any]:
        """The state with names of parameters in the place of their numbers, or the reverse.

        ``model`` is the module without FullyShardedDataParallel and ``optim`` its optimizer; ``optim_input`` as in
        :meth:`shard_full_optim_state_dict`.
        """
        name_of = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = _with_groups(model, optim_input, optim).param_groups
        names = [name_of[id(parameter)] for group in groups for parameter in group["params"]]
        keys: dict[Any, Any]
        if optim_state_key_type is OptimStateKeyType.PARAM_NAME:
            keys = dict(enumerate(names))
        elif optim_state_key_type is OptimStateKeyType.PARAM_ID:
            keys = {name: number for number, name in enumerate(names)}
        else:
            raise ValueError(f"optim_state_key_type must be PARAM_NAME or PARAM_ID, not {optim_state_key_type}")
        return {
            "state": {keys.get(key, key): values for key, values in optim_state_dict["state"].items()},
            "param_groups": [
                {**group, "params": sorted(keys[key] for key in group["params"])}
                for group in optim_state_dict["param_groups"]
            ],
        }


def _with_groups(model: nn.Module, optim_input: Any, optim: torch.optim.Optimizer | None) -> Any:
    """The optimizer, or an object with the groups of parameters that it would have."""
    if optim is not None and optim_input is not None:
        raise ValueError("pass the optimizer (optim) or the argument it was built from (optim_input), not both")
    if optim is not None:
        return optim
    given: Iterable[Any] = model.parameters() if optim_input is None else optim_input
    listed = list(given)
    if not listed or not isinstance(listed[0], dict):
        listed = [{"params": listed}]
    groups = []
    for group in listed:
        members = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        groups.append({**group, "params": members})
    return SimpleNamespace(param_groups=groups)

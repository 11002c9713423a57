"""State dicts of modules under FullyShardedDataParallel."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictSettings,
    StateDictType,
)
from torch.distributed.fsdp._shard_utils import _create_chunk_dtensor, _create_chunk_sharded_tensor
from torch.distributed.tensor import DTensor
from torch.distributed.utils import _replace_by_prefix

from fsdp_cpp._fsdp1_parameters import LocalParameters, Managed

PREFIX = "_fsdp_wrapped_module."
_CHECKPOINT_PREFIX = "_checkpoint_wrapped_module."

_CONFIGS = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


def clean(name: str) -> str:
    """The name that a parameter has without wrappers."""
    return name.replace(PREFIX, "").replace(_CHECKPOINT_PREFIX, "")


def initialize(state: Any) -> None:
    """Prepares a FullyShardedDataParallel module for state dicts; the full form is the default."""
    state._state_dict_type = StateDictType.FULL_STATE_DICT
    state._state_dict_config, state._optim_state_dict_config = FullStateDictConfig(), FullOptimStateDictConfig()
    state._mesh_of_parts = state._device_mesh  # without one, values in parts are ShardedTensors
    state._register_load_state_dict_pre_hook(_before_load, with_module=True)


# -- settings --


def set_type(states: list[Any], kind: StateDictType, config: Any, optim_config: Any) -> StateDictSettings:
    if kind not in _CONFIGS:
        raise NotImplementedError(
            f"fsdp_cpp: {kind} is not supported; SHARDED_STATE_DICT needs no more memory and loads on any number of "
            "ranks"
        )
    config_type, optim_config_type = _CONFIGS[kind]
    config, optim_config = config or config_type(), optim_config or optim_config_type()
    if type(config) is not config_type:
        raise RuntimeError(f"Expected state_dict_config of type {config_type} but got {type(config)}")
    if type(optim_config) is not optim_config_type:
        raise RuntimeError(f"Expected optim_state_dict_config of type {optim_config_type} but got {type(optim_config)}")
    before = get_type(states)
    for state in states:
        state._state_dict_type = kind
        state._state_dict_config, state._optim_state_dict_config = config, optim_config
    return before


def get_type(states: list[Any]) -> StateDictSettings:
    settings = [
        StateDictSettings(state._state_dict_type, state._state_dict_config, state._optim_state_dict_config)
        for state in states
    ]
    if any(one != settings[0] for one in settings):
        raise AssertionError(f"All FSDP modules must have the same state dict settings. Got {settings}.")
    return settings[0] if settings else StateDictSettings(None, None, None)  # type: ignore[arg-type]


@contextmanager
def in_dtensors(states: list[Any]) -> Generator[None, None, None]:
    """Values in parts are DTensors, also those of modules that were wrapped without a mesh."""
    before = [state._mesh_of_parts for state in states]
    meshes: dict[dist.ProcessGroup, DeviceMesh] = {}
    for state in states:
        if state._mesh_of_parts is None:
            if state.process_group not in meshes:
                meshes[state.process_group] = DeviceMesh.from_group(state.process_group, state.compute_device.type)
            state._mesh_of_parts = meshes[state.process_group]
    try:
        yield
    finally:
        for state, mesh in zip(states, before, strict=True):
            state._mesh_of_parts = mesh


# -- saving --


@contextmanager
def full_precision(state: Any) -> Generator[None, None, None]:
    """Gathers parameters in the dtype of the shards, in the whole tree of a module that computes in another one."""
    policy = state.mixed_precision
    if (
        state._sharded is None
        or (policy.param_dtype is None and policy.buffer_dtype is None)
        or state._in_full_precision()
    ):
        yield
        return
    state._sharded.set_full_precision(True)
    state.__dict__["_in_full_precision"] = lambda: True
    try:
        yield
    finally:
        del state.__dict__["_in_full_precision"]
        state._sharded.set_full_precision(False)


def state_dict(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The values under the names that they have without wrappers, in the form of ``state_dict_type``. Collective."""
    prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
    holders = [holder for holder in self._holders() if not holder.shows_whole]
    outermost = not self._has_parent or "destination" not in kwargs
    with full_precision(self) if outermost else _nothing():
        for holder in holders:
            holder.shows_whole = True
        try:
            result = nn.Module.state_dict(self, *args, **kwargs)
        finally:
            for holder in holders:
                holder.shows_whole = False
        _replace_by_prefix(result, prefix + PREFIX, prefix)
        _take_out(self, result, prefix)
    return result


@contextmanager
def _nothing() -> Generator[None, None, None]:
    yield


def _take_out(state: Any, result: dict[str, Any], prefix: str) -> None:
    """Replaces the module's own whole parameters in a state dict by values that outlive their gather."""
    config = state._state_dict_config
    dropped = getattr(config, "rank0_only", False) and state.rank != 0
    wholes = {one.whole.untyped_storage()._cdata for one in state._managed}
    for key, value in list(result.items()):
        if not key.startswith(prefix) or not isinstance(value, torch.Tensor) or is_in_parts(value):
            continue
        if value.untyped_storage()._cdata in wholes:
            full = value.detach().clone()  # on all ranks, because it gathers
            result[key] = in_form_of(state, full, config.offload_to_cpu)
        elif config.offload_to_cpu:
            result[key] = value.cpu()
        else:
            continue
        if dropped:
            del result[key]
    if dropped:
        for name, _ in state.named_buffers():
            result.pop(prefix + clean(name), None)
    if state._sharded is not None:
        state._sharded.reshard(state._mirror)


def in_form_of(state: Any, full: torch.Tensor, offload_to_cpu: bool, device: torch.device | None = None) -> Any:
    """A whole tensor in the form that the module's state_dict_type asks for."""
    if state._state_dict_type is StateDictType.FULL_STATE_DICT:
        return full.cpu() if offload_to_cpu else full
    if offload_to_cpu:
        full = full.cpu()
    if state._mesh_of_parts is not None:
        return _create_chunk_dtensor(full, state.rank, state._mesh_of_parts)
    devices = torch.accelerator.device_count() if full.device.type != "cpu" else 1
    return _create_chunk_sharded_tensor(full, state.rank, state.world_size, devices, state.process_group, full.device)


# -- loading --


def _before_load(
    state: Any,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Puts this rank's parts in the place of whole values, so that nn.Module copies them into the shards. With
    ``assign=True``, copies them itself and puts the listed parameters there, which then stay what they are."""
    assigns = local_metadata.get("assign_to_params_buffers", False)
    for name, one in named_managed(state):
        key = prefix + name
        value = state_dict.get(key)
        if value is None:
            if one.is_flat:
                missing_keys.append(clean(key))
            continue
        full = whole_of(value, state.process_group)
        if full.shape != one.whole.shape:
            error_msgs.append(
                f"size mismatch for {clean(key)}: copying a param with shape {full.shape} from checkpoint, the shape "
                f"in current model is {one.whole.shape}."
            )
            state_dict[key] = one.local.clone()
        elif assigns and full.dtype != one.whole.dtype:
            error_msgs.append(
                f"fsdp_cpp: assign=True would change {clean(key)} from {one.whole.dtype} to {full.dtype}; load without "
                "it, which converts values, or convert the module before it is wrapped."
            )
            state_dict[key] = one.local.clone()
        else:
            state_dict[key] = one.place.local_piece(full)
        if one.is_flat or assigns:
            with torch.no_grad():
                one.local.copy_(state_dict.pop(key))
        if assigns and not one.is_flat:
            state_dict[key] = one.leaf
    _replace_by_prefix(state_dict, prefix, prefix + PREFIX)
    for name, value in dict.items(state.module._parameters):
        if getattr(value, "_is_flat_param", False):
            inner = _CHECKPOINT_PREFIX if state.module is not state._fsdp_wrapped_module else ""
            state_dict[prefix + PREFIX + inner + name] = value if assigns else value.detach()


def named_managed(state: Any) -> list[tuple[str, Managed]]:
    """The parameters that a module manages, with their present names below it, without wrappers. Shared ones appear
    once for each name."""
    by_holder: dict[int, list[Managed]] = {}
    for one in state._managed:
        by_holder.setdefault(id(one.holder), []).append(one)
    found = []
    for path, module in state._fsdp_wrapped_module.named_modules():
        if type(module._parameters) is LocalParameters:
            for one in by_holder.get(id(module._parameters), ()):
                found.append((clean(f"{path}.{one.name}" if path else one.name), one))
    return found


def is_in_parts(value: Any) -> bool:
    return isinstance(value, (DTensor, ShardedTensor))


def whole_of(value: Any, process_group: dist.ProcessGroup) -> torch.Tensor:
    """The whole tensor of one that may be in parts. Collective for those."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, ShardedTensor):
        here = value.local_shards()[0].tensor if value.local_shards() else None
        device = here.device if here is not None else torch.device("cpu")
        full = torch.empty(value.size(), dtype=value.dtype, device=device)
        value.gather(dst=0, out=full if process_group.rank() == 0 else None)
        dist.broadcast(full, group=process_group, group_src=0)
        return full
    return value.detach()

"""State dicts of optimizers over parameters of FullyShardedDataParallel."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import StateDictType

from fsdp_cpp._fsdp1_parameters import Managed
from fsdp_cpp._fsdp1_state_dict import clean, get_type, in_form_of, named_managed, whole_of


def state_dict(
    model: nn.Module,
    states: list[Any],
    optimizer: torch.optim.Optimizer,
    given: dict[str, Any] | None,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """The state of an optimizer by names of original parameters. Collective. With ``rank0_only`` only the first rank of
    ``group`` (None: of the job) has it."""
    settings = get_type(states)
    full = settings.state_dict_type is StateDictType.FULL_STATE_DICT
    config = settings.optim_state_dict_config
    dropped = full and getattr(config, "rank0_only", False) and dist.get_rank(group) != 0
    given = optimizer.state_dict() if given is None else given
    names, managed = _names(model, states)
    state_of = _states_by_parameter(optimizer, given)
    result: dict[str, Any] = {}
    for state in states:
        own = [(name, one) for name, one in managed.items() if one[0] is state]
        result.update(_gathered(state, own, state_of, config, full))
    for parameter_id, parameter_names in names.items():
        if not any(name in managed for name in parameter_names) and state_of.get(parameter_id):
            result[parameter_names[0]] = state_of[parameter_id]
    if dropped:
        return {}
    groups = []
    for held, values in zip(optimizer.param_groups, given["param_groups"], strict=True):
        listed = [name for parameter in held["params"] for name in names[id(parameter)]]
        groups.append({key: value for key, value in values.items() if key != "params"} | {"params": listed})
    return {"state": result, "param_groups": groups}


def state_dict_to_load(
    model: nn.Module,
    states: list[Any],
    optimizer: torch.optim.Optimizer,
    given: dict[str, Any],
    process_group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """The part of a state by names that the optimizer of this rank loads. Collective."""
    settings = get_type(states)
    if getattr(settings.optim_state_dict_config, "rank0_only", False):
        given = _from_rank_0(given, process_group)
    _warn_if_empty(given, optimizer)
    names, managed = _names(model, states)
    parts = {name: _part(state, one, given["state"].get(name)) for name, (state, one) in managed.items()}
    result: dict[str, Any] = {"state": {}, "param_groups": []}
    empty_groups = iter([one for one in given.get("param_groups", []) if not one["params"]])
    index = 0
    for group in optimizer.param_groups:
        indices = []
        for parameter in group["params"]:
            own = [name for name in names[id(parameter)] if name in managed]
            known = _merged(parameter, [(managed[name][1], parts[name]) for name in own])
            if not own:
                known = given["state"].get(names[id(parameter)][0])
            if known is not None and (parameter.numel() > 0 or not own):  # no gradient comes to an empty part
                result["state"][index] = known
            indices.append(index)
            index += 1
        if "param_groups" not in given:
            continue
        if group["params"]:
            saved = _group_with(names[id(group["params"][0])][0], given["param_groups"])
        else:
            saved = next(empty_groups, group)
        result["param_groups"].append({key: saved[key] for key in saved if key != "params"} | {"params": indices})
    if "param_groups" not in given:
        del result["param_groups"]
    return result


def _warn_if_empty(given: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Warns if there is nothing to load, as in the template that accelerate makes of an optimizer that is new."""
    is_plain_sgd = all("dampening" in group and not group["momentum"] for group in optimizer.param_groups)
    if not given["state"] and not is_plain_sgd:
        warnings.warn(
            "fsdp_cpp: optim_state_dict_to_load: the state dict has no state of any parameter, so the optimizer begins "
            "anew. accelerate loads a sharded state so for an optimizer that has not stepped, with fsdp_version 1: "
            "choose FULL_STATE_DICT, or fsdp_version 2",
            stacklevel=4,
        )


def _group_with(name: str, groups: list[dict[str, Any]]) -> dict[str, Any]:
    for group in groups:
        if name in group["params"]:
            return group
    raise ValueError(f"fsdp_cpp: the optimizer's state dict has no group with parameter '{name}'")


# -- names --


def _names(model: nn.Module, states: list[Any]) -> tuple[dict[int, list[str]], dict[str, tuple[Any, Managed]]]:
    """Names of parameters by the identity of what the optimizer holds, and managed parameters by name. A parameter that
    is registered several times has its first name only."""
    managed: dict[str, tuple[Any, Managed]] = {}
    names: dict[int, list[str]] = {}
    seen: set[int] = set()
    paths = {id(module): path for path, module in model.named_modules()}
    for state in states:
        path = clean(paths[id(state)] + ".") if paths[id(state)] else ""
        for name, one in named_managed(state):
            if id(one.whole) not in seen:
                seen.add(id(one.whole))
                managed[path + name] = (state, one)
                names.setdefault(id(one.leaf), []).append(path + name)
    for name, parameter in model.named_parameters():
        names.setdefault(id(parameter), [clean(name)])
    return names, managed


def _states_by_parameter(optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> dict[int, dict[str, Any]]:
    found = {}
    for group, values in zip(optimizer.param_groups, given["param_groups"], strict=True):
        for parameter, index in zip(group["params"], values["params"], strict=True):
            if index in given["state"]:
                found[id(parameter)] = given["state"][index]
    return found


# -- saving --


def _is_part(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _gathered(
    state: Any, own: list[tuple[str, tuple[Any, Managed]]], state_of: dict[int, dict[str, Any]], config: Any, full: bool
) -> dict[str, Any]:
    """The states of the parameters of one module: whole tensors, or in parts as its settings say."""
    local = {name: state_of.get(id(one.leaf), {}) for name, (_, one) in own}
    kinds = {
        name: {key: str(value.dtype) if _is_part(value) else None for key, value in values.items()}
        for name, values in local.items()
    }
    plain = {
        name: {key: value for key, value in values.items() if not _is_part(value)} for name, values in local.items()
    }
    everywhere: list[Any] = [None] * state.world_size
    dist.all_gather_object(everywhere, (kinds, plain), group=state.process_group)
    result = {}
    for name, (_, one) in own:
        keys: dict[str, str | None] = {}
        for kinds_there, _ in everywhere:
            keys |= kinds_there[name]
        values: dict[str, Any] = {}
        for key, dtype in keys.items():
            if dtype is None:
                values[key] = next(there[name][key] for _, there in everywhere if key in there[name])
            else:
                piece = local[name].get(key)
                piece = None if piece is None else one.local_piece_of(piece)
                whole = _gather(state, one, piece, getattr(torch, dtype.removeprefix("torch.")))
                values[key] = in_form_of(state, whole, config.offload_to_cpu)
        if values:
            result[name] = values
    return result


def _gather(state: Any, one: Managed, piece: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """A whole tensor from the pieces of all ranks, which have the places of the parameter's own."""
    ranges = [one.place.range_on(rank) for rank in range(one.place.ranks)]
    longest = max(end - begin for begin, end in ranges)
    device = one.leaf.device if piece is None else piece.device
    padded = torch.zeros(longest, dtype=dtype, device=device)
    if piece is not None:
        padded[: piece.numel()] = piece.reshape(-1)
    if one.place.ranks == 1:
        return padded.reshape(one.whole.shape)
    pieces = [torch.empty_like(padded) for _ in ranges]
    dist.all_gather(pieces, padded, group=state.process_group)
    parts = [part[: end - begin] for part, (begin, end) in zip(pieces, ranges, strict=True)]
    return torch.cat(parts).reshape(one.whole.shape)


# -- loading --


def _from_rank_0(given: dict[str, Any], group: dist.ProcessGroup | None) -> dict[str, Any]:
    box = [given]
    dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def _part(state: Any, one: Managed, values: dict[str, Any] | None) -> dict[str, Any] | None:
    """This rank's part of the state of one parameter. Collective for states that are in parts."""
    if values is None:
        return None
    found = {}
    for key, value in values.items():
        whole = whole_of(value, state.process_group) if isinstance(value, torch.Tensor) else value
        if _is_part(whole):
            if whole.shape != one.whole.shape:
                raise ValueError(f"fsdp_cpp: state '{key}' has shape {whole.shape}, the parameter {one.whole.shape}")
            whole = one.place.local_piece(whole).to(one.leaf.device, copy=True)
        elif isinstance(whole, torch.Tensor):
            whole = whole.clone()  # parameters of one FlatParameter share their count of steps
        found[key] = whole
    return found


def _merged(parameter: torch.Tensor, parts: list[tuple[Managed, dict[str, Any] | None]]) -> dict[str, Any] | None:
    """The state of what the optimizer holds: of one parameter's part, or of a FlatParameter."""
    if not any(values for _, values in parts):
        return None
    merged: dict[str, Any] = {}
    for one, values in parts:
        for key, value in (values or {}).items():
            if not _is_part(value):
                merged.setdefault(key, value)
            elif not one.is_flat:
                merged[key] = value
            else:
                flat = merged.setdefault(key, torch.zeros_like(parameter, dtype=value.dtype))
                one.local_piece_of(flat).copy_(value)
    return merged

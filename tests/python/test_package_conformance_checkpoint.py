"""Checkpoints by torch.distributed.checkpoint and torch.save, beside FSDP2 and in exchange with it, to the bit."""

import functools
import io

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.state_dict import StateDictOptions

from package_beside import (
    assert_same,
    assert_same_as_fsdp2,
    error_of,
    full,
    make_model,
    parameters_of,
    run_ranks,
    shard_model,
    train,
)


def make_run(fsdp, seed=3, frozen=False):
    model = make_model(seed=seed, tied=False)
    if frozen:
        model.embedding.weight.requires_grad_(False)
    shard_model(fsdp, model)
    groups = [
        {"params": [p for p in model.blocks.parameters() if p.requires_grad], "lr": 0.01},
        {"params": [p for n, p in model.named_parameters() if "blocks" not in n and p.requires_grad], "lr": 0.02},
    ]
    return model, torch.optim.AdamW(groups, weight_decay=0.1)


def plain(value):
    """A nested state without DTensors: of each, its local part and placements."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "to_local"):
        return "DTensor", str(value.placements), value.to_local().detach().clone(), tuple(value.shape)
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def optimizer_tensors(optimizer):
    return [
        {name: full(value) if isinstance(value, torch.Tensor) else value for name, value in state.items()}
        for state in optimizer.state.values()
    ]


# -- state dicts --

OPTIONS = {
    "sharded": StateDictOptions(),
    "on the host": StateDictOptions(cpu_offload=True),
    "full": StateDictOptions(full_state_dict=True),
    "full on rank 0": StateDictOptions(full_state_dict=True, cpu_offload=True),
    "without frozen": StateDictOptions(ignore_frozen_params=True),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "flat and full": StateDictOptions(flatten_optimizer_state_dict=True, full_state_dict=True),
}


def gotten(fsdp, rank, size):
    model, optimizer = make_run(fsdp, frozen=True)
    train(model, 2, rank, optimizer)
    results = {"model.state_dict": plain(model.state_dict())}
    for name, options in OPTIONS.items():
        results[name] = plain(dcp_state.get_state_dict(model, optimizer, options=options))
    results["part"] = plain(dcp_state.get_model_state_dict(model, submodules={model.blocks[1]}))
    return results


def test_state_dicts():
    assert_same_as_fsdp2(2, gotten)


def set_again(fsdp, rank, size):
    """Puts the state of one run into another one, in each form; then both train on."""
    results = {}
    for name in ("sharded", "on the host", "full", "flat", "flat and full"):
        source, source_optimizer = make_run(fsdp)
        train(source, 2, rank, source_optimizer)
        states = dcp_state.get_state_dict(source, source_optimizer, options=OPTIONS[name])
        model, optimizer = make_run(fsdp, seed=9)
        error = error_of(functools.partial(set_states, model, optimizer, states, OPTIONS[name]))
        before = plain(model.state_dict()), plain(optimizer.state_dict())
        results[name] = error, before, train(model, 1, rank, optimizer)
    return results


def set_states(model, optimizer, states, options):
    missing = dcp_state.set_state_dict(
        model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options
    )
    assert list(missing) == [[], []]


def test_states_put_into_another_run():
    assert_same_as_fsdp2(2, set_again)


def broadcast(fsdp, rank, size):
    source, source_optimizer = make_run(fsdp)
    train(source, 2, rank, source_optimizer)
    states = dcp_state.get_state_dict(source, source_optimizer, options=OPTIONS["full on rank 0"])
    model, optimizer = make_run(fsdp, seed=9)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    own = states if rank == 0 else ({}, {})
    dcp_state.set_model_state_dict(model, own[0], options=options)
    dcp_state.set_optimizer_state_dict(model, optimizer, own[1], options=options)
    return parameters_of(model), optimizer_tensors(optimizer), train(model, 1, rank, optimizer)


def test_states_that_rank_0_broadcasts():
    assert_same_as_fsdp2(2, broadcast)


def not_strict(fsdp, rank, size):
    model, _ = make_run(fsdp)
    state = dcp_state.get_model_state_dict(model)
    del state["norm.weight"]
    state["other"] = torch.ones(1)
    strict = error_of(lambda: dcp_state.set_model_state_dict(model, dict(state)))
    left = dcp_state.set_model_state_dict(model, dict(state), options=StateDictOptions(strict=False))
    return strict[0], list(left), error_of(lambda: model.load_state_dict(dict(state)))[0]


def test_keys_that_do_not_fit():
    assert_same_as_fsdp2(2, not_strict)


# -- folders --


def states_of(model, optimizer):
    model_state, optimizer_state = dcp_state.get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def package(name):
    import fsdp_cpp
    import torch.distributed.fsdp as fsdp2

    return {"ours": fsdp_cpp, "FSDP2": fsdp2}[name]


def save(rank, size, writer, folder):
    model, optimizer = make_run(package(writer))
    train(model, 2, rank, optimizer)
    dcp.save(states_of(model, optimizer), checkpoint_id=folder)
    return parameters_of(model), optimizer_tensors(optimizer)


def load(rank, size, reader, folder):
    model, optimizer = make_run(package(reader), seed=9)
    states = states_of(model, optimizer)
    dcp.load(states, checkpoint_id=folder)
    dcp_state.set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    return parameters_of(model), optimizer_tensors(optimizer)


@pytest.mark.parametrize(
    ("writer", "writers", "reader", "readers"),
    [("ours", 2, "FSDP2", 3), ("FSDP2", 3, "ours", 2), ("ours", 3, "ours", 1), ("FSDP2", 1, "ours", 3)],
)
def test_folders_are_exchanged_over_other_numbers_of_ranks(tmp_path, writer, writers, reader, readers):
    saved = run_ranks(writers, save, writer, str(tmp_path))
    for loaded in run_ranks(readers, load, reader, str(tmp_path)):
        assert_same(loaded, saved[0])


def in_memory(fsdp, rank, size):
    model, optimizer = make_run(fsdp)
    train(model, 2, rank, optimizer)
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    small = buffer.tell() < 40_000 * 3
    buffer.seek(0)
    states = torch.load(buffer, weights_only=False)
    model, optimizer = make_run(fsdp, seed=9)
    loaded = model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    return small, list(loaded), plain(states), train(model, 1, rank, optimizer)


def test_torch_save_of_state_dicts():
    assert_same_as_fsdp2(2, in_memory)


def safely_loaded(fsdp, rank, size):
    from torch.distributed.tensor import DTensor

    model, _ = make_run(fsdp)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert all(type(value) is DTensor for value in state.values())
    return plain(state), list(model.load_state_dict(state, assign=True)), parameters_of(model)


def test_torch_load_with_weights_only():
    assert_same_as_fsdp2(2, safely_loaded)

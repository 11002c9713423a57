"""State dicts of modules under FullyShardedDataParallel and of their optimizers, beside PyTorch's."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as PyTorchs
from torch.distributed.fsdp import ShardingStrategy, StateDictType

from package_fsdp1 import STEPS, adamw, assert_same_optimizer_states, check_training, close, make_net, ours, train, wrap
from package_ranks import run_ranks

# Each of these takes the rank and the number of ranks.


def check_optimizer_states(rank, size):
    """In PyTorch's state dict with use_orig_params, buffers of several states are one memory on CPUs."""
    nets, optimizers = check_training(rank, size, False, ShardingStrategy.FULL_SHARD)
    expected = PyTorchs.optim_state_dict(nets[1], optimizers[1])
    assert_same_optimizer_states(ours().optim_state_dict(nets[0], optimizers[0]), expected)
    by_name = wrap(ours(), use_orig_params=True)
    optimizer = adamw(by_name)
    train(by_name, optimizer, rank)
    found = ours().optim_state_dict(by_name, optimizer)
    names = [state["param_groups"][0]["params"] for state in (found, expected)]
    assert sorted(names[0]) == sorted(names[1])  # their order is that of each net's own parameters()
    found["param_groups"][0]["params"] = names[1]
    assert_same_optimizer_states(found, expected)


def check_resumption(rank, size, use_orig_params, kind, other_layout, **options):
    """Saves after some steps, loads into a net with other values, and goes on as the first net does."""
    net = wrap(ours(), use_orig_params=use_orig_params, **options)
    optimizer = adamw(net)
    train(net, optimizer, rank)
    with ours().state_dict_type(net, kind):
        saved = net.state_dict()
        saved_optimizer = ours().optim_state_dict(net, optimizer)
    names = {"0.weight", "0.bias", "1.linear.weight", "1.norm.bias", "3.weight", "scale"}
    assert names < saved.keys() and len(saved) == 12
    whole = kind is StateDictType.FULL_STATE_DICT
    assert (type(saved["0.weight"]) is torch.Tensor) == whole, type(saved["0.weight"])
    again = wrap(ours(), seed=1, use_orig_params=use_orig_params != other_layout, **options)
    optimizer_again = adamw(again)
    with ours().state_dict_type(again, kind):
        again.load_state_dict(saved)
        state = ours().optim_state_dict_to_load(again, optimizer_again, saved_optimizer, load_directly=True)
    assert state["state"]
    assert close(again.state_dict(), net.state_dict(), tolerance=0)
    steps = range(STEPS, STEPS + 2)
    found, expected = train(again, optimizer_again, rank, steps), train(net, optimizer, rank, steps)
    # Norms of other parts are summed in another order.
    tolerance = 1e-5 if other_layout else 0
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=tolerance, atol=tolerance)


def check_rank_0_only(rank, size):
    from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig

    net = wrap(ours(), use_orig_params=True)
    optimizer = adamw(net)
    train(net, optimizer, rank)
    configs = FullStateDictConfig(True, rank0_only=True), FullOptimStateDictConfig(True, rank0_only=True)
    with ours().state_dict_type(net, StateDictType.FULL_STATE_DICT, *configs):
        saved, saved_optimizer = net.state_dict(), ours().optim_state_dict(net, optimizer)
        assert bool(saved) == bool(saved_optimizer) == (rank == 0)
        loaded = ours().optim_state_dict_to_load(net, optimizer, saved_optimizer)
    local = optimizer.state_dict()["state"]
    for index, values in loaded["state"].items():
        if index in local:
            assert close(values, local[index], tolerance=0), index


def check_empty_states_and_groups(rank, size):
    """A group without parameters, as the Trainer makes one, keeps its values. That a state is empty is said."""
    net = wrap(ours(), use_orig_params=False)
    weights = list(net.parameters())
    optimizer = torch.optim.AdamW([{"params": weights, "lr": 0.1}, {"params": [], "lr": 0.2}])
    train(net, optimizer, rank)
    saved = ours().optim_state_dict(net, optimizer)
    again = torch.optim.AdamW([{"params": weights}, {"params": []}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours().optim_state_dict_to_load(net, again, saved, load_directly=True)
    assert [group["lr"] for group in again.param_groups] == [0.1, 0.2]
    assert len(again.param_groups[1]["params"]) == 0
    local, found = optimizer.state_dict()["state"], again.state_dict()["state"]
    assert local.keys() == found.keys() and all(close(found[key], local[key], tolerance=0) for key in local)
    without = {**saved, "param_groups": [saved["param_groups"][0]]}
    assert ours().optim_state_dict_to_load(net, again, without)["param_groups"][1]["lr"] == 0.2
    without_states = torch.optim.SGD(weights, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved = ours().optim_state_dict(net, without_states)
        ours().optim_state_dict_to_load(net, without_states, saved, load_directly=True)
    new = torch.optim.AdamW(weights)
    empty = ours().optim_state_dict(net, new)
    with pytest.warns(UserWarning, match="no state of any parameter, so the optimizer begins anew"):
        ours().optim_state_dict_to_load(net, new, empty, load_directly=True)


def check_older_functions(rank, size):
    """The functions for optimizer states of before optim_state_dict do what PyTorch's do."""
    from torch.distributed.fsdp import OptimStateKeyType

    nets, optimizers = check_training(rank, size, False, ShardingStrategy.FULL_SHARD)
    whole, expected = (
        kind.full_optim_state_dict(*pair)
        for kind, pair in zip((ours(), PyTorchs), zip(nets, optimizers, strict=True), strict=True)
    )
    assert bool(whole) == (rank == 0)
    if rank == 0:
        assert_same_optimizer_states(whole, expected)
    local = optimizers[0].state_dict()
    everywhere = ours().full_optim_state_dict(nets[0], optimizers[0], rank0_only=False)
    in_parts = ours().sharded_optim_state_dict(nets[0], optimizers[0])
    for loaded in (
        ours().scatter_full_optim_state_dict(whole, nets[0], optim=optimizers[0]),
        ours().shard_full_optim_state_dict(everywhere, nets[0]),
        ours().shard_full_optim_state_dict(everywhere, nets[0], optim_input=list(nets[0].parameters())),
        ours().flatten_sharded_optim_state_dict(in_parts, nets[0], optimizers[0]),
    ):
        assert loaded["state"].keys() == local["state"].keys()
        for index, values in local["state"].items():
            assert close(loaded["state"][index], values, tolerance=0), index
    plain = make_net()
    numbered = ours().rekey_optim_state_dict(everywhere, OptimStateKeyType.PARAM_ID, plain)
    assert numbered["param_groups"][0]["params"] == list(range(len(list(plain.parameters()))))
    optimizer = adamw(plain)
    optimizer.load_state_dict(numbered)
    named = ours().rekey_optim_state_dict(optimizer.state_dict(), OptimStateKeyType.PARAM_NAME, plain, optim=optimizer)
    assert named["state"].keys() == everywhere["state"].keys()
    for name, values in everywhere["state"].items():
        assert close(named["state"][name], values, tolerance=0), name


def check_missing_and_wrong_values(rank, size, use_orig_params):
    net = wrap(ours(), use_orig_params=use_orig_params)
    saved = net.state_dict()
    del saved["1.linear.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*1\..*linear.weight"):
        net.load_state_dict(saved)
    net.load_state_dict(saved, strict=False)
    with pytest.raises(RuntimeError, match=r"size mismatch for 1.linear.weight.*\[2\]"):
        net.load_state_dict(saved | {"1.linear.weight": torch.ones(2)})


def check_assignment(rank, size, use_orig_params):
    """assign=True replaces buffers and what is not sharded; the sharded parameters stay, with new values."""
    net, source = wrap(ours(), use_orig_params=use_orig_params), wrap(ours(), seed=1)
    optimizer, listed, buffer = adamw(net), list(net.parameters()), net.module.scale
    for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
        with ours().state_dict_type(net, kind), ours().state_dict_type(source, kind):
            saved = source.state_dict()
            assert list(net.load_state_dict(saved, assign=True)) == [[], []]
    assert [id(p) for p in net.parameters()] == [id(p) for p in listed] and net.module.scale is not buffer
    assert close(net.state_dict(), source.state_dict(), tolerance=0)
    found, expected = train(net, optimizer, rank), train(source, adamw(source), rank)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    before = net.state_dict()
    halves = {name: value.bfloat16() for name, value in before.items()}
    with pytest.raises(
        RuntimeError, match=r"change 1.linear.weight from torch.float32 to torch.bfloat16; load without"
    ):
        net.load_state_dict(halves, assign=True)
    assert close({**net.state_dict(), "scale": before["scale"]}, before, tolerance=0)
    with pytest.raises(RuntimeError, match=r"size mismatch for 1.linear.weight.*\[2\]"):
        net.load_state_dict(before | {"1.linear.weight": torch.ones(2)}, assign=True)
    del before["1.linear.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*1\..*linear.weight"):
        net.load_state_dict(before, assign=True)


def every_check(rank, size):
    full, sharded = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT
    for orig in (True, False):
        check_resumption(rank, size, orig, full, other_layout=False)
        check_resumption(rank, size, orig, full, other_layout=True)
        check_resumption(rank, size, orig, sharded, other_layout=True)
        check_missing_and_wrong_values(rank, size, orig)
        check_assignment(rank, size, orig)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    check_resumption(rank, size, True, sharded, other_layout=False, device_mesh=mesh)
    for check in (check_optimizer_states, check_rank_0_only, check_empty_states_and_groups, check_older_functions):
        check(rank, size)


@pytest.mark.parametrize("ranks", [2, 3])
def test_states_are_pytorchs_and_can_be_loaded(ranks):
    run_ranks(ranks, every_check)

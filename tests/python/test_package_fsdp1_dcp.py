"""torch.distributed.checkpoint over modules under FullyShardedDataParallel, with and without fsdp_cpp.install(), and
state dicts of their optimizers that were saved as they are."""

import copy
import io
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import FullyShardedDataParallel as PyTorchs

from package_ranks import run_ranks

warnings.filterwarnings("ignore", category=FutureWarning)
CPU = torch.device("cpu")
FORMS = {
    "in parts": StateDictOptions(),
    "in parts on the host": StateDictOptions(cpu_offload=True),
    "full": StateDictOptions(full_state_dict=True),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "flat and full": StateDictOptions(flatten_optimizer_state_dict=True, full_state_dict=True),
}


class Net(nn.Module):
    """Odd sizes, a layer with fewer rows than ranks, a tied weight, a frozen one and a buffer."""

    def __init__(self, seed, tied):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(7, 5)
        self.block = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
        self.norm = nn.BatchNorm1d(5)
        self.again = nn.Linear(5, 5)
        self.last = nn.Linear(5, 1)
        if tied:
            self.again.weight = self.block[0].weight

    def forward(self, inputs):
        return self.last(self.again(self.norm(self.block(self.first(inputs)))))


def make(layout, seed=0, tied=False, frozen=False):
    """A model and its optimizer: under FullyShardedDataParallel (`flat` or `original` parameters), sharded by rows, or
    plain."""
    import fsdp_cpp

    net = Net(seed, tied)
    net.last.bias.requires_grad_(not frozen)
    kinds = {"PyTorch's": PyTorchs}
    if layout == "rows":
        fsdp_cpp.fully_shard(net.block)
        fsdp_cpp.fully_shard(net)
    elif layout != "plain":
        wrap = kinds.get(layout, fsdp_cpp.FullyShardedDataParallel)
        options = {"device_id": CPU, "use_orig_params": layout != "flat"}
        if not tied:
            net.block = wrap(net.block, **options)
        net = wrap(net, **options)
    return net, torch.optim.AdamW(net.parameters(), lr=0.05)


def train(net, optimizer, steps, first=0):
    """Trains on the same batch on all ranks, so that one process is a reference."""
    losses = []
    for step in range(first, first + steps):
        loss = net(torch.randn(4, 7, generator=torch.Generator().manual_seed(step))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def full(value):
    if isinstance(value, dict):
        return {key: full(one) for key, one in value.items()}
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def assert_close(found, expected, where=""):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), (where, found.keys() ^ expected.keys())
        for key, value in expected.items():
            assert_close(found[key], value, f"{where}.{key}")
    elif isinstance(expected, torch.Tensor):
        assert type(found) is torch.Tensor, (where, type(found))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=lambda text: f"{where}: {text}")
    elif where.endswith("param_groups"):
        # A FlatParameter has the names of its unit, so that their order is another one.
        for groups in (found, expected):
            for group in groups:
                group["params"] = sorted(group["params"])
        assert found == expected, where
    else:
        assert found == expected, where


def states_of(net, optimizer, form="full"):
    return dcp_state.get_state_dict(net, optimizer, options=FORMS[form])


def set_states(net, optimizer, states, form):
    states = copy.deepcopy(states)  # full ones share their counts of steps with the optimizer
    missing = dcp_state.set_state_dict(
        net, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=FORMS[form]
    )
    assert list(missing) == [[], []]


# -- the functions of torch.distributed.checkpoint.state_dict --


def check_states(layout, form, tied):
    """All ranks get whole values, or DTensors, under the names of one process, and can put them into another model."""
    net, optimizer = make(layout, tied=tied)
    plain, plain_optimizer = make("plain", tied=tied)
    train(net, optimizer, 2)
    train(plain, plain_optimizer, 2)
    states = states_of(net, optimizer, form)
    expected = states_of(plain, plain_optimizer, form)
    for found, value in zip(states, expected, strict=True):
        assert_close(full(found), value, f"{layout}, {form}")
    again, optimizer_again = make(layout, seed=5, tied=tied)
    set_states(again, optimizer_again, states, form)
    assert train(again, optimizer_again, 2, first=2) == train(net, optimizer, 2, first=2)


def check_rank_0(layout):
    """Rank 0 alone gets the states, and broadcasts them to others."""
    net, optimizer = make(layout)
    train(net, optimizer, 2)
    alone = StateDictOptions(full_state_dict=True, cpu_offload=True)
    states = copy.deepcopy(dcp_state.get_state_dict(net, optimizer, options=alone))
    assert bool(states[0]) == bool(states[1]) == (dist.get_rank() == 0)
    again, optimizer_again = make(layout, seed=5)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_state.set_model_state_dict(again, states[0], options=options)
    dcp_state.set_optimizer_state_dict(again, optimizer_again, states[1], options=options)
    assert train(again, optimizer_again, 2, first=2) == train(net, optimizer, 2, first=2)


def check_frozen(layout):
    net, optimizer = make(layout, frozen=True)
    train(net, optimizer, 1)
    states = dcp_state.get_state_dict(net, optimizer, options=StateDictOptions(full_state_dict=True))
    assert "last.bias" in states[0] and "last.bias" not in states[1]["state"]
    assert "last.weight" in states[1]["state"]
    again, optimizer_again = make(layout, seed=5, frozen=True)
    set_states(again, optimizer_again, states, "full")
    assert train(again, optimizer_again, 2, first=1) == train(net, optimizer, 2, first=1)


def check_part_of_a_model():
    """A module that is not itself wrapped, but has wrapped ones."""
    from fsdp_cpp import FullyShardedDataParallel

    net = Net(0, tied=False)
    net.block = FullyShardedDataParallel(net.block, device_id=CPU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    plain, plain_optimizer = make("plain")
    train(net, optimizer, 2)
    train(plain, plain_optimizer, 2)
    for found, value in zip(states_of(net, optimizer), states_of(plain, plain_optimizer), strict=True):
        assert_close(found, value, "a part")


def check_pytorchs_class():
    """Models of PyTorch's class are theirs, in a process that has some of this package as well."""
    states = []
    for layout in ("PyTorch's", "original"):
        net, optimizer = make(layout)
        train(net, optimizer, 2)
        states.append(states_of(net, optimizer))
    assert isinstance(net, dcp_state.FSDP) and not isinstance(net.module, dcp_state.FSDP)
    assert_close(states[0][0], states[1][0], "PyTorch's")
    assert states[0][1]["state"].keys() == states[1][1]["state"].keys()


def every_check(rank, size, installed):
    import fsdp_cpp

    if installed:
        fsdp_cpp.install()
    for layout in ("original", "flat", "rows"):
        for form in FORMS:
            if layout == "rows" and form == "flat and full":
                continue  # PyTorch's set_state_dict fails, on FSDP2's models as well
            for tied in (False, True) if layout != "rows" else (False,):
                check_states(layout, form, tied)
        check_rank_0(layout)
        check_frozen(layout)
    check_part_of_a_model()
    if not installed:
        check_pytorchs_class()
    else:
        fsdp_cpp.uninstall()
        check_states("original", "full", False)


@pytest.mark.parametrize(("ranks", "installed"), [(1, False), (2, False), (2, True), (3, False)])
def test_state_dict_functions_see_wrapped_modules(ranks, installed):
    run_ranks(ranks, every_check, installed)


# -- folders --


def save(rank, size, layout, folder):
    net, optimizer = make(layout)
    train(net, optimizer, 2)
    states = states_of(net, optimizer, "in parts")
    dcp.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=folder)
    return train(net, optimizer, 2, first=2)


def load(rank, size, layout, folder):
    net, optimizer = make(layout, seed=5)
    states = states_of(net, optimizer, "in parts")
    dcp.load({"model": states[0], "optimizer": states[1]}, checkpoint_id=folder)
    set_states(net, optimizer, states, "in parts")
    return train(net, optimizer, 2, first=2)


@pytest.mark.parametrize(
    ("writer", "writers", "reader", "readers"),
    [("original", 2, "flat", 3), ("flat", 3, "original", 2), ("original", 3, "rows", 1), ("rows", 2, "flat", 2)],
)
def test_folders_are_read_by_other_layouts_and_numbers_of_ranks(tmp_path, writer, writers, reader, readers):
    expected = run_ranks(writers, save, writer, str(tmp_path))
    found = run_ranks(readers, load, reader, str(tmp_path))
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(expected[0]), rtol=1e-4, atol=1e-6)


# -- optimizer.state_dict() as it is --


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def own_parts(rank, size, layout, folder):
    net, optimizer = make(layout)
    train(net, optimizer, 2)
    state = saved(optimizer.state_dict())
    again, optimizer_again = make(layout)
    again.load_state_dict(net.state_dict())
    optimizer_again.load_state_dict(state)
    assert train(again, optimizer_again, 2, first=2) == train(net, optimizer, 2, first=2)
    everywhere = [None] * size
    dist.all_gather_object(everywhere, copy.deepcopy(optimizer.state_dict()))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(
        ValueError, match=f"parts of rank {(rank + 1) % size} of {size}, but .* of rank {rank} of {size}.*optim_state_d"
    ):
        optimizer.load_state_dict(everywhere[(rank + 1) % size])
    assert_close(optimizer.state_dict()["state"], before["state"], "refused")
    _, plain = make("plain")
    with pytest.raises(ValueError, match="but this optimizer holds whole parameters"):
        plain.load_state_dict(state)
    for value in (optimizer, optimizer.state_dict(), copy.deepcopy(optimizer.state_dict())):
        with pytest.raises(dcp.CheckpointException, match=r"would be saved for all. Save .*optim_state_dict\(model"):
            dcp.save({"optimizer": value}, checkpoint_id=folder)


@pytest.mark.parametrize("layout", ["original", "flat"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_one_rank_are_no_other_ranks(ranks, layout, tmp_path):
    run_ranks(ranks, own_parts, layout, str(tmp_path))


def unsharded(rank, size):
    from fsdp_cpp import FullyShardedDataParallel
    from torch.distributed.fsdp import ShardingStrategy

    net = FullyShardedDataParallel(Net(0, False), device_id=CPU, sharding_strategy=ShardingStrategy.NO_SHARD)
    assert torch.optim.SGD(net.parameters()).state_dict().keys() == {"state", "param_groups"}


def test_states_without_sharding_are_those_of_all_ranks():
    run_ranks(2, unsharded)

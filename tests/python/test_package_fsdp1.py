"""The package's FullyShardedDataParallel beside PyTorch's: one script, two classes."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as PyTorchs
from torch.distributed.fsdp import MixedPrecision, ShardedStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from package_ranks import run_ranks

warnings.filterwarnings("ignore", category=FutureWarning)
STEPS = 3
CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.norm = nn.LayerNorm(5)

    def forward(self, inputs):
        return inputs + self.norm(torch.tanh(self.linear(inputs)))


def make_net(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 5), Block(), Block(), nn.Linear(5, 2, bias=False))
    net.register_buffer("scale", torch.tensor([0.5]))
    return net


def ours():
    from fsdp_cpp import FullyShardedDataParallel

    return FullyShardedDataParallel


def wrap(kind, seed=0, **options):
    return kind(make_net(seed), **{"auto_wrap_policy": ModuleWrapPolicy({Block}), "device_id": CPU} | options)


def batch(step, rank):
    return torch.randn(4, 7, generator=torch.Generator().manual_seed(10 * step + rank))


def train(net, optimizer, rank, steps=range(STEPS)):
    """Returns losses and norms."""
    seen = []
    for step in steps:
        loss = net(batch(step, rank)).square().mean()
        loss.backward()
        norm = net.clip_grad_norm_(0.5)
        optimizer.step()
        optimizer.zero_grad()
        seen += [loss.item(), norm.item()]
    return seen


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-2)


def close(ours, theirs, tolerance=1e-6):
    return ours.keys() == theirs.keys() and all(
        ours[key].shape == theirs[key].shape and torch.allclose(ours[key], theirs[key], rtol=1e-4, atol=tolerance)
        for key in theirs
    )


def assert_same_optimizer_states(found, expected):
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for name, values in expected["state"].items():
        assert close(found["state"][name], values), (name, found["state"][name], values)


# Each of these takes the rank and the number of ranks.


def check_listed_parameters(nets, use_orig_params, strategy):
    listed = [[(name, isinstance(p, nn.Parameter)) for name, p in net.named_parameters()] for net in nets]
    assert listed[0] == listed[1]
    if not use_orig_params:
        assert [p.shape for p in nets[0].parameters()] == [p.shape for p in nets[1].parameters()]
        return
    # PyTorch aligns original parameters in a unit, so its ranks have other parts of them.
    counts = torch.tensor([p.numel() for p in nets[0].parameters()])
    if strategy is not ShardingStrategy.NO_SHARD:
        dist.all_reduce(counts)
    assert counts.tolist() == [p.numel() for p in make_net().parameters()]
    assert all(p.dim() == 1 for p in nets[0].parameters())


def gradients_of(net):
    """The gradients of a net's parameters in one vector on all ranks."""
    here = [torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in net.parameters()]
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    return torch.cat([torch.cat([part[i] for part in everywhere]) for i in range(len(here))])


def assert_same_gradients(net, other):
    found, expected = gradients_of(net), gradients_of(other)
    assert found.any()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def check_training(rank, size, use_orig_params, strategy):
    nets = [wrap(kind, use_orig_params=use_orig_params, sharding_strategy=strategy) for kind in (ours(), PyTorchs)]
    check_listed_parameters(nets, use_orig_params, strategy)
    assert [len(kind.fsdp_modules(net)) for kind, net in zip((ours(), PyTorchs), nets, strict=True)] == [3, 3]
    optimizers = [adamw(net) for net in nets]
    found, expected = (train(net, optimizer, rank) for net, optimizer in zip(nets, optimizers, strict=True))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert close(nets[0].state_dict(), nets[1].state_dict())
    return nets, optimizers


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


def check_summoning(rank, size, use_orig_params):
    net, plain = wrap(ours(), use_orig_params=use_orig_params), make_net()
    expected = dict(plain.named_parameters())
    with ours().summon_full_params(net):
        found = dict(net.named_parameters())
        assert close({name: p.detach() for name, p in found.items()}, {n: p.detach() for n, p in expected.items()})
        assert all(isinstance(p, nn.Parameter) for p in found.values())
        with torch.no_grad():
            found["1.linear.weight"].fill_(3)
        with pytest.raises(AssertionError, match="already unsharding"), ours().summon_full_params(net):
            pass
    assert net.state_dict()["1.linear.weight"].eq(3).all()
    with ours().summon_full_params(net, writeback=False), torch.no_grad():
        net.module[0].weight.zero_()
    assert net.state_dict()["0.weight"].any()
    with ours().summon_full_params(net, writeback=False, rank0_only=True):
        shapes = [p.dim() for p in net.parameters()]
        assert (max(shapes) == 2) == (rank == 0)
    with ours().summon_full_params(net, recurse=False):
        assert "0.weight" in dict(net.named_parameters()) and max(p.dim() for p in net.module[1].parameters()) == 1
    net.apply(lambda module: nn.init.constant_(module.weight, 2.0) if isinstance(module, nn.Linear) else None)
    assert all(net.state_dict()[name].eq(2).all() for name in ("0.weight", "1.linear.weight", "3.weight"))
    if use_orig_params:
        net(batch(0, 0)).sum().backward()
        for p in plain.parameters():
            p.data.fill_(2.0) if p.dim() == 2 else None
        plain(batch(0, 0)).sum().backward()
        with ours().summon_full_params(net, with_grads=True):
            gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
        assert close(gradients, {name: p.grad for name, p in plain.named_parameters()}, tolerance=1e-4)


def check_accumulation(rank, size, use_orig_params):
    nets = [wrap(kind, use_orig_params=use_orig_params) for kind in (ours(), PyTorchs)]
    for net in nets:
        with net.no_sync():
            net(batch(0, rank)).square().mean().backward()
        net(batch(1, rank)).square().mean().backward()
    assert_same_gradients(*nets)
    with pytest.raises(RuntimeError, match="inner FSDP instances"), nets[0].module[1].no_sync():
        pass


def check_mixed_precision(rank, size, use_orig_params):
    policy = MixedPrecision(torch.bfloat16, torch.float32, buffer_dtype=torch.bfloat16)
    nets = [wrap(kind, use_orig_params=use_orig_params, mixed_precision=policy) for kind in (ours(), PyTorchs)]
    results = [net(batch(0, rank)) for net in nets]
    assert results[0].dtype == results[1].dtype == torch.bfloat16
    assert torch.equal(*results)
    for result in results:
        result.float().square().mean().backward()
    assert {p.dtype for p in nets[0].parameters()} == {p.dtype for p in nets[1].parameters()} == {torch.float32}
    assert_same_gradients(*nets)
    saved = nets[0].state_dict()
    assert close(saved, make_net().state_dict(), tolerance=0)  # not rounded to bfloat16
    assert nets[0](batch(0, rank)).dtype == torch.bfloat16


def check_initialization(rank, size):
    mine = wrap(ours(), seed=rank, sync_module_states=True)
    assert close(mine.state_dict(), make_net(0).state_dict(), tolerance=0)

    def initialize(module):
        module.to_empty(device=CPU, recurse=False)
        with torch.no_grad():
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                tensor.fill_(4)

    with torch.device("meta"):
        meta = make_net()
    made = ours()(meta, device_id=CPU, param_init_fn=initialize)
    assert all(value.eq(4).all() for value in made.state_dict().values())
    with torch.device("meta"):
        meta = nn.Linear(3, 3)
    torch.manual_seed(5)
    made = ours()(meta, device_id=CPU)
    torch.manual_seed(5)
    assert torch.equal(made.state_dict()["weight"], nn.Linear(3, 3).weight)


def check_ignored(rank, size):
    net = make_net()
    ignored = net[3].weight
    wrapped = ours()(net, ignored_states=[ignored], use_orig_params=True, device_id=CPU)
    assert dict(wrapped.named_parameters())["_fsdp_wrapped_module.3.weight"] is ignored and ignored.shape == (2, 5)
    wrapped(batch(0, 0)).sum().backward()
    plain = make_net()
    plain(batch(0, 0)).sum().backward()
    norm = wrapped.clip_grad_norm_(0.5)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ignored.grad, plain[3].weight.grad, rtol=1e-5, atol=1e-6)


def check_refusals(rank, size):
    kind = ours()
    net = wrap(kind)
    with pytest.raises(NotImplementedError, match="register_comm_hook"):
        net.register_comm_hook(None, lambda *_: None)
    with pytest.raises(NotImplementedError, match="LOCAL_STATE_DICT"):
        kind.set_state_dict_type(net, StateDictType.LOCAL_STATE_DICT)
    with pytest.raises(RuntimeError, match="Expected state_dict_config"):
        kind.set_state_dict_type(net, StateDictType.FULL_STATE_DICT, ShardedStateDictConfig())
    with pytest.raises(NotImplementedError, match=r"torch.float32 on cpu to torch.float64"):
        net.double()
    with pytest.raises(NotImplementedError), kind.summon_full_params(net, with_grads=True):
        pass
    with pytest.raises(NotImplementedError), kind.summon_full_params(net, rank0_only=True):
        pass
    with pytest.raises(ValueError, match="to not already have FSDP"):
        kind(nn.Sequential(net), auto_wrap_policy=ModuleWrapPolicy({Block}))
    with pytest.raises(ValueError, match="requires explicit specification"):
        kind(make_net(), sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    with pytest.raises(ValueError, match="just pass ignored_states"):
        kind(make_net(), ignored_modules=[], ignored_states=[])


def check_scaler(rank, size):
    from fsdp_cpp import ShardedGradScaler

    net, plain = wrap(ours(), use_orig_params=True), wrap(PyTorchs, use_orig_params=True)
    seen = []
    for one in (net, plain):
        optimizer, scaler = torch.optim.SGD(one.parameters(), lr=0.1), ShardedGradScaler("cpu", init_scale=64.0)
        for step in range(3):
            loss = one(batch(step, rank)).square().mean()
            scaler.scale(loss * (float("inf") if step == 1 and rank == 0 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        seen.append((scaler.get_scale(), one.state_dict()))
    assert seen[0][0] == seen[1][0] == 32.0
    assert close(seen[0][1], seen[1][1])


def every_check(rank, size):
    full, sharded = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT
    for orig in (True, False):
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
            check_training(rank, size, orig, strategy)
        check_resumption(rank, size, orig, full, other_layout=False)
        check_resumption(rank, size, orig, full, other_layout=True)
        check_resumption(rank, size, orig, sharded, other_layout=True)
        check_missing_and_wrong_values(rank, size, orig)
        check_assignment(rank, size, orig)
        check_summoning(rank, size, orig)
        check_accumulation(rank, size, orig)
        check_mixed_precision(rank, size, orig)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    check_resumption(rank, size, True, sharded, other_layout=False, device_mesh=mesh)
    for check in (
        check_optimizer_states,
        check_rank_0_only,
        check_older_functions,
        check_initialization,
        check_ignored,
        check_refusals,
        check_scaler,
    ):
        check(rank, size)


@pytest.mark.parametrize("ranks", [2, 3])
def test_wrapped_modules_do_what_pytorchs_do(ranks):
    run_ranks(ranks, every_check)


def hybrid(rank, size):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    strategy = ShardingStrategy.HYBRID_SHARD
    nets = [wrap(kind, sharding_strategy=strategy, device_mesh=mesh) for kind in (ours(), PyTorchs)]
    groups = mesh.get_group("shard"), mesh.get_group("replicate")
    nets.append(wrap(ours(), sharding_strategy=strategy, process_group=groups))
    results = [train(net, adamw(net), rank) for net in nets]
    torch.testing.assert_close(torch.tensor(results[0]), torch.tensor(results[1]), rtol=1e-5, atol=1e-6)
    assert results[0] == results[2]
    saved = nets[0].state_dict()
    assert close(saved, nets[1].state_dict())


def test_hybrid_shards_train_as_pytorchs_do():
    run_ranks(4, hybrid)

"""The package's FullyShardedDataParallel beside PyTorch's: one script, two classes."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as PyTorchs
from torch.distributed.fsdp import MixedPrecision, ShardedStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from package_fsdp1 import CPU, Block, adamw, batch, check_training, close, make_net, ours, train, wrap
from package_ranks import run_ranks

# Each of these takes the rank and the number of ranks.


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
    for orig in (True, False):
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
            check_training(rank, size, orig, strategy)
        check_summoning(rank, size, orig)
        check_accumulation(rank, size, orig)
        check_mixed_precision(rank, size, orig)
    for check in (check_initialization, check_ignored, check_refusals, check_scaler):
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

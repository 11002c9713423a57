"""What FullyShardedDataParallel checks, warns of and keeps when modules are wrapped, beside PyTorch's."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as PyTorchs
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from package_ranks import run_ranks

warnings.filterwarnings("ignore", category=FutureWarning)
CPU = torch.device("cpu")


def ours():
    from fsdp_cpp import FullyShardedDataParallel

    return FullyShardedDataParallel


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2))


def batch(rank, step=0):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def check_arguments_of_inner_modules(rank, size):
    for name, inner, outer in (("_use_orig_params", False, True), ("limit_all_gathers", False, True)):
        net = make_net()
        net[1] = ours()(net[1], device_id=CPU, **{name.lstrip("_"): inner})
        with pytest.raises(ValueError, match=f"Expects one homogeneous value for {name}"):
            ours()(net, device_id=CPU, **{name.lstrip("_"): outer})
    groups = [dist.new_group([one]) for one in range(size)]
    net = make_net()
    with pytest.warns(UserWarning, match="since the world size is 1"):
        net[1] = ours()(net[1], process_group=groups[rank], device_id=CPU)
    assert net[1].sharding_strategy is ShardingStrategy.NO_SHARD
    with pytest.raises(NotImplementedError, match="different process groups"):
        ours()(net, device_id=CPU)


def check_arguments(rank, size):
    with pytest.warns(UserWarning, match="containers that do not implement forward"):
        ours()(nn.ModuleList([nn.Linear(3, 3)]), device_id=CPU)
    with torch.device("meta"):
        meta = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="to be callable"):
        ours()(meta, device_id=CPU, param_init_fn=42)
    net = make_net()
    net[1] = ours()(net[1], device_id=CPU)
    with pytest.raises(ValueError, match="should not include FSDP modules"):
        ours()(net, ignored_modules=[net[1]], device_id=CPU)
    with pytest.raises(ValueError, match="not a tuple"):
        ours()(make_net(), process_group=(dist.group.WORLD, dist.group.WORLD), device_id=CPU)
    with pytest.raises(ValueError, match="mesh of one dimension"):
        ours()(make_net(), device_mesh=dist.device_mesh.init_device_mesh("cpu", (1, size)))
    with pytest.raises(ValueError, match=r"device_id=0 is an accelerator's index"):
        ours()(make_net(), device_id=0)


def check_wrapped_twice(rank, size, use_orig_params):
    """A wrapper around a wrapper changes nothing but names."""
    once = ours()(make_net(), device_id=CPU, use_orig_params=use_orig_params)
    twice = ours()(
        ours()(make_net(), device_id=CPU, use_orig_params=use_orig_params),
        device_id=CPU,
        use_orig_params=use_orig_params,
    )
    for net in (once, twice):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(batch(rank)).square().mean().backward()
        assert net.clip_grad_norm_(0.1) > 0
        optimizer.step()
    assert torch.equal(once(batch(rank)), twice(batch(rank)))
    values = [list(net.state_dict().values()) for net in (once, twice)]
    assert len(values[0]) == 6 and all(torch.equal(*pair) for pair in zip(*values, strict=True))


def check_nested_no_sync(rank, size):
    """The end of an inner scope does not end the outer one."""
    nets = [kind(make_net(), device_id=CPU, use_orig_params=True) for kind in (ours(), PyTorchs)]
    gradients = []
    for net in nets:
        with net.no_sync():
            with net.no_sync():
                net(batch(rank)).square().mean().backward()
            net(batch(rank, 1)).square().mean().backward()
        if net is nets[0]:
            assert net._sharded.stats()["reduce_scatters"] == 0
        net(batch(rank, 2)).square().mean().backward()
        flat = torch.cat([torch.zeros(0), *[p.grad.reshape(-1) for p in net.parameters() if p.grad is not None]])
        total = torch.stack([flat.sum(), flat.square().sum()])
        dist.all_reduce(total)
        gradients.append(total)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def check_no_gradients(rank, size):
    for kind in (ours(), PyTorchs):
        net = kind(make_net(), device_id=CPU)
        with pytest.warns(UserWarning, match=f"on rank {rank} with no gradients"):
            norm = net.clip_grad_norm_(1.0)
        assert norm == 0 and norm.dtype == torch.float32


def check_casts_of_inputs(rank, size):
    """The inputs of a root are cast if either flag says so."""
    for root in (True, False):
        for inner in (True, False):
            policy = MixedPrecision(torch.bfloat16, cast_root_forward_inputs=root, cast_forward_inputs=inner)
            seen = []
            for kind in (ours(), PyTorchs):
                net = kind(make_net(), device_id=CPU, mixed_precision=policy)
                net.module[0].register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].dtype))
                net(batch(rank).to(torch.bfloat16 if not (root or inner) else torch.float32))
            assert seen[0] == seen[1] == torch.bfloat16
            if not (root or inner):
                net = ours()(make_net(), device_id=CPU, mixed_precision=policy)
                with pytest.raises(RuntimeError, match="dtype"):
                    net(batch(rank))


def check_evaluation(rank, size):
    """FSDP_USE_FULL_PREC_IN_EVAL: full precision in eval(), the policy's in train()."""
    os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"
    try:
        policy = MixedPrecision(torch.bfloat16, buffer_dtype=torch.bfloat16)
        nets = [
            kind(make_net(), auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), device_id=CPU, mixed_precision=policy)
            for kind in (ours(), PyTorchs)
        ]
    finally:
        del os.environ["FSDP_USE_FULL_PREC_IN_EVAL"]
    for training in (True, False, True):
        results = [net.train(training)(batch(rank)) for net in nets]
        expected = torch.bfloat16 if training else torch.float32
        assert results[0].dtype == results[1].dtype == expected
        assert torch.equal(*results)
    with torch.no_grad():
        nets[0].eval()
        assert torch.equal(nets[0](batch(rank)), make_net()(batch(rank)))


def check_hooks_of_parameters(rank, size, use_orig_params):
    net = ours()(make_net(), device_id=CPU, use_orig_params=use_orig_params)
    for parameter in net.parameters():
        for method in ("register_hook", "register_post_accumulate_grad_hook"):
            with pytest.raises(NotImplementedError, match=f"{method}.*would never call"):
                getattr(parameter, method)(print)
    seen = []
    net.module[0].weight.register_hook(lambda gradient: seen.append(gradient.shape))
    net(batch(rank)).sum().backward()
    assert seen == [(3, 5)]


def check_optimizers_in_backward(rank, size):
    from torch.distributed.optim import _apply_optimizer_in_backward

    net = ours()(make_net(), device_id=CPU, use_orig_params=True)
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1}, register_hook=False)
    with pytest.raises(NotImplementedError, match="_apply_optimizer_in_backward is not supported"):
        net(batch(rank))


def every_check(rank, size):
    check_wrapped_twice(rank, size, True)
    check_wrapped_twice(rank, size, False)
    check_hooks_of_parameters(rank, size, True)
    check_hooks_of_parameters(rank, size, False)
    for check in (
        check_arguments_of_inner_modules,
        check_arguments,
        check_nested_no_sync,
        check_no_gradients,
        check_casts_of_inputs,
        check_evaluation,
        check_optimizers_in_backward,
    ):
        check(rank, size)


def test_modules_are_wrapped_as_pytorchs_are():
    run_ranks(2, every_check)


def hybrid(rank, size):
    """Without process groups, ranks of one host share shards."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    policy = ModuleWrapPolicy({nn.Sequential})
    net = ours()(make_net(), device_id=CPU, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    ranks = [dist.get_process_group_ranks(group) for group in (net.process_group, net._replicate_group)]
    assert ranks == [[rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]]
    net(batch(rank)).square().mean().backward()
    plain = make_net()
    sum(plain(batch(one)).square().mean() for one in range(size)).div(size).backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()])
    torch.testing.assert_close(net.clip_grad_norm_(1.0), expected, rtol=1e-5, atol=1e-6)


def test_hybrid_shards_follow_hosts():
    run_ranks(4, hybrid)

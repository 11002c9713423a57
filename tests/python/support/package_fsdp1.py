"""Models under FullyShardedDataParallel, this package's and PyTorch's, that are trained beside each other."""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as PyTorchs
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

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


def check_training(rank, size, use_orig_params, strategy):
    nets = [wrap(kind, use_orig_params=use_orig_params, sharding_strategy=strategy) for kind in (ours(), PyTorchs)]
    check_listed_parameters(nets, use_orig_params, strategy)
    assert [len(kind.fsdp_modules(net)) for kind, net in zip((ours(), PyTorchs), nets, strict=True)] == [3, 3]
    optimizers = [adamw(net) for net in nets]
    found, expected = (train(net, optimizer, rank) for net, optimizer in zip(nets, optimizers, strict=True))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert close(nets[0].state_dict(), nets[1].state_dict())
    return nets, optimizers

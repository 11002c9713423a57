"""A small model for tests of optimizers, sharded so that it trains as one process does, to the bit."""

import functools

import torch
from torch import nn
from torch.distributed.tensor import DTensor

STEPS = 4


def make_net(seed=0):
    """Sizes that no number of ranks divides; the last layer has fewer rows than there are ranks."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 13), nn.Tanh(), nn.LayerNorm(13), nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 1))


def batch(step):
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(step))


def shard(net, **options):
    """Shards a net so that gradients of rank 0 alone, to the bit, are those of all ranks."""
    from fsdp_cpp import fully_shard

    fully_shard(net[0], **options)
    fully_shard(net, **options)
    for module in (net[0], net):
        module.set_gradient_divide_factor(1.0)
    return net


def loss_of(net, inputs, rank=0):
    return net(inputs).square().mean() * (1.0 if rank == 0 else 0.0)


def train(net, optimizer, steps=STEPS, rank=0, first=0):
    for step in range(first, first + steps):
        inputs = batch(step)
        closure = functools.partial(backward, net, optimizer, inputs, rank)
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    optimizer.zero_grad()


def backward(net, optimizer, inputs, rank):
    """Returns the loss, which the line search of LBFGS needs on all ranks."""
    optimizer.zero_grad()
    loss_of(net, inputs, rank).backward()
    return loss_of(net, inputs).detach()


def full(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def whole(net):
    return {name: full(parameter).detach().clone() for name, parameter in net.named_parameters()}


def whole_state(net, optimizer):
    return {
        name: {key: full(value) for key, value in optimizer.state[parameter].items()}
        for name, parameter in net.named_parameters()
        if parameter in optimizer.state and not isinstance(optimizer, torch.optim.LBFGS)
    }


def assert_same(got, expected, where):
    assert got.keys() == expected.keys(), where
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_same(got[name], value, f"{where}: {name}")
        elif isinstance(value, torch.Tensor) and "fused" in where:
            # Fused kernels round differently at the ends of a tensor, which shards have in other places.
            assert torch.allclose(got[name], value, rtol=1e-6, atol=1e-8), f"{where}: {name}"
        elif isinstance(value, torch.Tensor):
            assert torch.equal(got[name], value), f"{where}: {name} differs by {(got[name] - value).abs().max()}"
        else:
            assert got[name] == value, f"{where}: {name}"


def in_one_process(make, steps=STEPS):
    net = make_net()
    optimizer = make(net.parameters())
    train(net, optimizer, steps)
    return whole(net), whole_state(net, optimizer)

"""Writes to whole parameters and changes of requires_grad after fully_shard: as on an unsharded module."""

import torch
from torch import nn

from package_ranks import run_ranks
from parameter_views import assert_values, drift, sharded_linear


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def shard(net):
    from fsdp_cpp import EngineOptions, fully_shard

    fully_shard(net[0], engine_options=EngineOptions(backend="gloo"))
    return fully_shard(net, engine_options=EngineOptions(backend="gloo"))


def batch(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(4, 5).to(dtype)


WRITES = {
    "fill_": lambda weight: weight.fill_(3),
    "add_ of data": lambda weight: weight.data.add_(1),
    "a row": lambda weight: weight[1].zero_(),
    "an element": lambda weight: weight.__setitem__((0, 1), 9),
    "uniform_": lambda weight: nn.init.uniform_(weight),
    "kaiming_uniform_": lambda weight: nn.init.kaiming_uniform_(weight),
    "orthogonal_": lambda weight: nn.init.orthogonal_(weight),
    "trunc_normal_": lambda weight: nn.init.trunc_normal_(weight),
    "copy_": lambda weight: weight.copy_(torch.arange(15.0).reshape(5, 3)),
    "_foreach_add_": lambda weight: torch._foreach_add_([weight], 1.0),
    "out=": lambda weight: torch.add(weight, 1, out=weight),
}


def writes(rank, size):
    model, whole, parameter = sharded_linear(5, 3)
    for name, write in WRITES.items():
        plain = whole.detach().clone()
        for weight in (whole, plain):
            torch.manual_seed(3)
            with torch.no_grad():
                write(weight)
        assert_values(whole, parameter, plain)
        assert not drift(model[0], "weight", whole, parameter), name
    for layer in (model[0], plain_layer := nn.Linear(3, 5, bias=False)):
        torch.manual_seed(4)
        layer.reset_parameters()
    assert_values(whole, parameter, plain_layer.weight.detach())


def test_whole_parameters_can_be_written():
    run_ranks(2, writes)


def frozen_and_trained(rank, size):
    net, plain = shard(make_net()), make_net()
    for flags in ((False, True, True, True), (True, True, False, True), (True, True, True, True)):
        for model in (net, plain):
            for parameter, flag in zip(model.parameters(), flags, strict=True):
                parameter.requires_grad_(flag)
            model.zero_grad()
            model(batch()).square().sum().backward()
        for (name, own), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
            assert (own.grad is None) == (expected.grad is None), (name, flags)
            if expected.grad is not None:
                torch.testing.assert_close(own.grad.full_tensor(), expected.grad, msg=name)
    net[0].requires_grad_(False)
    plain[0].requires_grad_(False)
    net[2].weight.requires_grad = plain[2].weight.requires_grad = False  # through the whole parameter
    for model in (net, plain):
        model.zero_grad()
        model(batch()).sum().backward()
    assert [p.grad is None for p in net.parameters()] == [p.grad is None for p in plain.parameters()]


def test_requires_grad_changes_after_sharding():
    run_ranks(2, frozen_and_trained)

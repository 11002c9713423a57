"""Uses of parameters and gradients after fully_shard, each beside one process: the same, to the bit."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, stateless

from package_ranks import run_ranks


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1, bias=False))


def shard(net):
    from fsdp_cpp import fully_shard

    fully_shard(net[0])
    return fully_shard(net)


def batch():
    """The same on all ranks, so that the mean of gradients is each rank's to the bit over powers of two."""
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


def backward(net, factor=1.0):
    (net(batch()).square().mean() * factor).backward()
    return net


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def seen(net, *others):
    """Values and gradients of all parameters, the output, and other tensors: whole, in memory of their own."""
    values = [*others, net(batch())]
    for parameter in net.parameters():
        values += [parameter, torch.zeros(0) if parameter.grad is None else parameter.grad]
    return [full(value.detach()).clone() for value in values]


def train(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
    return seen(net)


USES = {}


def use(function):
    USES[function.__name__] = function
    return function


# -- copy.copy: the same memory --


@use
def copied_module_trains(net):
    twin = copy.copy(net)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    backward(twin)
    optimizer.step()
    return seen(net) + seen(twin)


@use
def copied_inner_module_is_written(net):
    twin = copy.copy(net[0])
    with torch.no_grad():
        twin.weight.mul_(2)
    twin(batch()).sum().backward()
    return seen(net, twin.weight, *twin.parameters())


@use
def copied_parameter_is_written(net):
    net(batch())
    twin = copy.copy(next(net.parameters()))
    assert isinstance(twin, nn.Parameter) and twin.is_leaf and twin.requires_grad
    with torch.no_grad():
        twin.mul_(2)
    return seen(net, twin)


@use
def copied_parameter_has_a_gradient_of_its_own(net):
    backward(net)
    twin = copy.copy(next(net.parameters()))
    assert twin.grad is None
    (twin * 2).sum().backward()
    return seen(net, twin.grad)


@use
def copied_parameters_are_stepped(net):
    net(batch())
    optimizer = torch.optim.SGD([copy.copy(parameter) for parameter in net.parameters()], lr=0.1)
    for twin in optimizer.param_groups[0]["params"]:
        twin.grad = torch.ones_like(twin)
    optimizer.step()
    return seen(net)


@use
def copied_frozen_parameter_and_data(net):
    parameter = next(net.parameters()).requires_grad_(False)
    twin, data = copy.copy(parameter), copy.copy(parameter.data)
    assert not twin.requires_grad and not isinstance(data, nn.Parameter)
    twin.add_(1)
    data.mul_(3)
    return seen(net, twin, data)


@use
def copied_whole_parameter_is_written(net):
    with torch.no_grad():
        copy.copy(net[0].weight).mul_(2)
    return seen(net)


# -- normalizations of weights that are applied after sharding --


@use
def old_weight_norm(net):
    nn.utils.weight_norm(net[0])
    results = train(net)
    nn.utils.remove_weight_norm(net[0])
    return results + train(net)


@use
def old_spectral_norm(net):
    torch.manual_seed(3)
    nn.utils.spectral_norm(net[2])
    results = train(net)
    nn.utils.remove_spectral_norm(net[2])
    return results + train(net)


@use
def new_weight_norm(net):
    parametrizations.weight_norm(net[0])
    results = train(net)
    parametrize.remove_parametrizations(net[0], "weight")
    return results + train(net)


@use
def new_spectral_norm(net):
    torch.manual_seed(3)
    parametrizations.spectral_norm(net[2])
    return train(net)


# -- functional calls --


@use
def stateless_call_with_other_values(net):
    output = stateless.functional_call(net, {"0.weight": torch.ones(3, 5)}, (batch(),))
    return seen(net, output)


@use
def stateless_call_with_the_parameters(net):
    output = stateless.functional_call(net, dict(net.named_parameters()), (batch(),))
    output.square().mean().backward()
    return seen(net, output)


@use
def stateless_call_with_values_made_of_the_parameters(net):
    values = {name: parameter * 2 for name, parameter in net.named_parameters()}
    output = stateless.functional_call(net, values, (batch(),))
    output.square().mean().backward()
    return seen(net, output)


# -- slices --


@use
def slices_that_need_gradients_already(net):
    net[0].weight[1:].requires_grad_(True)
    next(net.parameters())[1:].requires_grad_(True)
    return seen(backward(net))


@use
def slices_made_without_a_graph(net):
    results = []
    for parameter in (net[0].weight, next(net.parameters())):
        with torch.no_grad():
            part = parameter[1:]
        part.requires_grad_(True)
        (part * 2).sum().backward()
        results.append(part.grad)
    return seen(backward(net), *results)


@use
def slice_of_a_frozen_parameter(net):
    net[0].weight.requires_grad_(False)
    part = net[0].weight[1:].requires_grad_(True)
    (part * 2).sum().backward()
    return seen(backward(net), part.grad)


# -- gradients --


@use
def data_of_a_gradient_is_written(net):
    backward(net)
    next(net.parameters()).grad.data.mul_(3)
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    results = seen(net)
    next(net.parameters()).grad.data.fill_(3)
    next(net.parameters()).grad.detach().add_(1)
    return results + seen(backward(net))


@use
def gradients_are_zeroed(net):
    backward(net)
    next(net.parameters()).grad.zero_()
    results = seen(backward(net))
    for parameter in net.parameters():
        parameter.grad.zero_()
    return results + seen(net) + seen(backward(net))


@use
def a_gradient_is_cleared(net):
    backward(net)
    next(net.parameters()).grad = None
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    return seen(net) + seen(backward(net))


@use
def the_gradient_of_the_whole_parameter_is_cleared(net):
    backward(net)
    net[0].weight.grad = None
    results = seen(net) + seen(backward(net))
    net[2].weight.grad.zero_()
    return results + seen(net) + seen(backward(net))


@use
def gradients_are_cleared_by_the_module(net):
    backward(net).zero_grad()
    results = seen(net)
    backward(net).zero_grad(set_to_none=False)
    return results + seen(net) + seen(backward(net, 3.0))


def every_use(rank, size):
    results = {}
    for name, function in USES.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parameters that weight_norm registers and of deprecations
            results[name] = function(shard(make_net())), function(make_net())
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_uses_have_the_results_of_one_process(ranks):
    for results in run_ranks(ranks, every_use):
        for name, (found, expected) in results.items():
            assert len(found) == len(expected), name
            for one, other in zip(found, expected, strict=True):
                if ranks != 3:
                    assert torch.equal(one, other), name
                else:  # a third of a sum of three is not always the same number
                    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=lambda text: f"{name}: {text}")  # noqa: B023


def refusals(rank, size):
    net = backward(shard(make_net()))
    before = seen(net)
    for parameter in (net[0].weight, next(net.parameters())):
        with pytest.raises(RuntimeError, match="only change requires_grad flags of leaf variables"):
            parameter[1:].requires_grad_(False)
    with pytest.raises(RuntimeError, match=f"rank {rank}: .*gradient of parameter '0.weight' was used on the module"):
        net[0].weight.grad.data.mul_(3)
    with pytest.raises(NotImplementedError, match="'0.weight' cannot be replaced by another tensor"):
        net[0].weight = copy.copy(net[0].weight)
    with pytest.raises(NotImplementedError, match="'0.bias' cannot be replaced by another tensor"):
        copy.copy(net[0]).bias = nn.Parameter(torch.ones(3))
    with pytest.raises(RuntimeError, match=f"rank {rank}: .*'2.weight': aten::set_.*nothing was written"):
        parametrizations.orthogonal(net[2])
    with pytest.warns(UserWarning, match="'weight_g' was registered in .* after fully_shard.*are not sharded"):
        nn.utils.weight_norm(shard(make_net())[0])
    for one, other in zip(seen(net), before, strict=True):
        assert torch.equal(one, other)


def test_uses_that_are_refused_change_nothing():
    run_ranks(2, refusals)

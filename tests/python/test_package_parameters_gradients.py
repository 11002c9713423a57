"""Gradients of sharded parameters: .grad, penalties, hooks, and optimizers that step inside backward."""

import pytest
import torch
from torch import nn

from package_ranks import run_ranks
from parameter_views import own_rows, sharded_linear


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2))  # the last weight has no rows on a third rank


def shard(net):
    from fsdp_cpp import fully_shard

    fully_shard(net[0])
    return fully_shard(net)


def batch(step=0):
    torch.manual_seed(step + 1)
    return torch.randn(4, 3)


def assert_gradients(net, plain):
    for (name, parameter), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
        if expected.grad is None:
            assert parameter.grad is None, name
            continue
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad, msg=name)
        assert parameter.grad._local_tensor.shape == parameter._local_tensor.shape, name


def raises(error, *words):
    return pytest.raises(error, match="(?s)" + ".*".join(words))


def assignments(rank, size):
    from torch.distributed.tensor import DTensor

    _, whole, parameter = sharded_linear(5, 3)
    full = torch.arange(15.0).reshape(5, 3)
    assert parameter.grad is None
    parameter.grad = full.clone()
    assert isinstance(parameter.grad, DTensor) and torch.equal(parameter.grad.full_tensor(), full)
    assert torch.equal(parameter.leaf.grad, own_rows(full, parameter).flatten())
    held = parameter.grad
    parameter.grad += 1
    assert parameter.grad is held and torch.equal(parameter.grad.full_tensor(), full + 1)
    assert torch.equal(parameter.leaf.grad, own_rows(full + 1, parameter).flatten())
    parameter.grad = parameter.grad * 2
    assert torch.equal(parameter.grad.full_tensor(), 2 * full + 2)
    parameter.grad.zero_()
    assert not parameter.leaf.grad.any()
    del parameter.grad
    assert parameter.grad is None and parameter.leaf.grad is None
    whole.grad = full.clone()  # taken over, so that an optimizer on module.parameters() uses it
    assert torch.equal(parameter.grad.full_tensor(), full) and whole.grad is None
    replicated = parameter.grad.redistribute(placements=[_replicate()])
    parameter.grad = replicated
    assert torch.equal(parameter.grad.full_tensor(), full)
    for wrong, error in (
        (full[:1], raises(RuntimeError, "'0.weight'", "shape")),
        (torch.zeros(()), raises(RuntimeError, "'0.weight'", "shape")),
        (full.double(), raises(RuntimeError, "'0.weight'", "dtype")),
        (full.to("meta"), raises(RuntimeError, "'0.weight'", "device")),
        (1.0, raises(TypeError, "assigned grad")),
    ):
        with error:
            parameter.grad = wrong
    assert torch.equal(parameter.grad.full_tensor(), full)
    parameter.grad_dtype = parameter.grad_dtype
    with raises(NotImplementedError, "'0.weight'", "grad_dtype"):
        parameter.grad_dtype = torch.bfloat16


def _replicate():
    from torch.distributed.tensor import Replicate

    return Replicate()


@pytest.mark.parametrize("ranks", [1, 3])
def test_gradients_can_be_assigned(ranks):
    run_ranks(ranks, assignments)


def cleared(rank, size):
    """module.weight.grad says whether there is a gradient, and clearing one view clears the other."""
    net = shard(make_net())
    for clear in (
        lambda: net.zero_grad(),
        lambda: torch.optim.SGD(net.parameters()).zero_grad(),
        lambda: [setattr(p, "grad", None) for p in net.parameters()],
        lambda: [setattr(layer, "grad", None) for layer in (net[0].weight, net[0].bias, net[2].weight, net[2].bias)],
    ):
        net(batch()).sum().backward()
        assert net[0].weight.grad is not None and all(p.grad is not None for p in net.parameters())
        clear()
        assert net[0].weight.grad is None and all(p.grad is None for p in net.parameters())
        assert all(p.leaf.grad is None for p in net.parameters())


def penalties(rank, size):
    """Gradients that reach module.parameters() directly merge with those of the module."""
    net, plain = shard(make_net()), make_net()
    for step in range(2):
        for model in (net, plain):
            loss = model(batch(step)).square().mean()
            (loss + 0.1 * sum(_local_scalar(p.square().sum()) for p in model.parameters())).backward()
        assert_gradients(net, plain)
    net.zero_grad()
    plain.zero_grad()
    for model in (net, plain):
        sum(_local_scalar(p.abs().sum()) for p in model.parameters()).backward()
    assert_gradients(net, plain)
    torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
    torch.nn.utils.clip_grad_value_(plain.parameters(), 0.5)
    assert_gradients(net, plain)


def _local_scalar(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


@pytest.mark.parametrize("ranks", [1, 3])
def test_penalties_and_cleared_gradients(ranks):
    run_ranks(ranks, cleared)
    run_ranks(ranks, penalties)


def post_accumulate_hooks(rank, size):
    net, plain = make_net(), make_net()
    from fsdp_cpp import fully_shard

    fully_shard(net[0])
    names, calls = {}, []

    def hook(parameter):
        assert parameter.grad is not None
        calls.append((names[parameter], parameter.grad.full_tensor()))

    early = [p.register_post_accumulate_grad_hook(hook) for p in net[0].parameters()]  # before net's own call
    fully_shard(net)
    names.update({p: name for name, p in net.named_parameters()})
    late = [
        net[2].weight.register_post_accumulate_grad_hook(hook),  # on the whole parameter
        net.get_parameter("2.bias").register_post_accumulate_grad_hook(hook),
    ]
    for step in range(2):  # gradients accumulate
        for model in (net, plain):
            model(batch(step)).sum().backward()
        found = dict(calls)
        assert sorted(found) == sorted(names.values()) and len(calls) == len(names)
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad)
        calls.clear()
    for handle in early:
        handle.remove()
    net(batch()).sum().backward()
    assert sorted(name for name, _ in calls) == ["2.bias", "2.weight"]
    calls.clear()
    net[0](batch()).sum().backward()  # the others have old gradients
    assert calls == []
    for handle in late:
        handle.remove()
    net(batch()).sum().backward()
    assert calls == []
    with raises(NotImplementedError, "'0.weight'", "register_post_accumulate_grad_hook"):
        next(net.parameters()).register_hook(print)


def hooks_on_the_whole_parameter(rank, size):
    net, plain = shard(make_net()), make_net()
    for model in (net, plain):
        model[0].weight.register_hook(lambda gradient: gradient * 3)
        model(batch()).sum().backward()
    assert_gradients(net, plain)


@pytest.mark.parametrize("ranks", [1, 3])
def test_post_accumulate_hooks_are_called_once_a_unit_is_reduced(ranks):
    run_ranks(ranks, post_accumulate_hooks)
    run_ranks(ranks, hooks_on_the_whole_parameter)


def optimizers_in_backward(rank, size):
    net, plain = shard(make_net()), make_net()
    for model in (net, plain):
        for parameter in model.parameters():
            optimizer = torch.optim.AdamW([parameter], lr=0.1)

            def step(parameter, optimizer=optimizer):
                optimizer.step()
                parameter.grad = None

            parameter.register_post_accumulate_grad_hook(step)
    for step in range(4):
        losses = []
        for model in (net, plain):
            loss = model(batch(step)).square().mean()
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4), step
        assert all(p.grad is None and p.leaf.grad is None for p in net.parameters())
    for parameter, expected in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.full_tensor(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ranks", [1, 3])
def test_optimizers_step_inside_backward(ranks):
    run_ranks(ranks, optimizers_in_backward)


class OwnError(Exception):
    pass


def failing_hooks(rank, size):
    net = shard(make_net())
    calls = []

    def fail(parameter):
        calls.append(parameter)
        raise OwnError(f"rank {rank}")

    handles = [p.register_post_accumulate_grad_hook(fail) for p in net.parameters()]
    for _ in range(2):
        with pytest.raises(OwnError, match=f"rank {rank}"):
            net(batch()).sum().backward()
        assert len(calls) == 1  # the others are not called
        calls.clear()
    for handle in handles:
        handle.remove()
    net.zero_grad()
    plain = make_net()
    for model in (net, plain):
        model(batch()).sum().backward()
    assert_gradients(net, plain)


def test_exceptions_of_hooks_are_raised_by_backward():
    run_ranks(2, failing_hooks)

"""Uses of autograd with fsdp_cpp, beside FSDP2 or one process: frozen and unused parameters, several passes, passes
that fail."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from package_beside import (
    assert_same,
    assert_same_as_fsdp2,
    error_of,
    full,
    gradients_of,
    loss_of,
    make_batch,
    make_model,
    parameters_of,
    run_ranks,
    shard_model,
    train,
)


def frozen(fsdp, rank, size):
    results = []
    for reshard in (True, False):
        model = make_model(blocks=3)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("bias" in name or "blocks.1" in name)
        shard_model(fsdp, model, reshard_after_forward=reshard)
        trainable = [p for p in model.parameters() if p.requires_grad]
        results.append((len(trainable), train(model, 2, rank, torch.optim.SGD(trainable, lr=0.1))))
    return results


def test_frozen_and_trained_parameters_in_one_unit():
    assert_same_as_fsdp2(2, frozen)


def several_forwards(fsdp, rank, size):
    model = shard_model(fsdp, make_model(tied=True))
    results = []
    for count in (2, 3):
        loss = sum(loss_of(model, make_batch(index, rank)) for index in range(count))
        loss.backward()
        results.append(gradients_of(model))
        model.zero_grad()
    with torch.no_grad():
        results.append(full(model(make_batch(0, rank))))
    losses = [loss_of(model, make_batch(index, rank)) for index in range(2)]
    for loss in losses:
        loss.backward()
    return results, gradients_of(model)


def test_several_forward_passes_before_backward():
    assert_same_as_fsdp2(2, several_forwards)


def backward_twice(fsdp, rank, size):
    model = shard_model(fsdp, make_model())
    loss = loss_of(model, make_batch(0, rank))
    loss.backward(retain_graph=True)
    once = gradients_of(model)
    loss.backward()
    twice = gradients_of(model)
    return once, twice, error_of(loss.backward)[0]


def test_backward_twice_through_one_graph():
    assert_same_as_fsdp2(2, backward_twice)


def without_graph(fsdp, rank, size):
    model = shard_model(fsdp, make_model())
    # Made first, because FSDP2 leaves whole parameters in the root after a forward without backward.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        one = full(model(make_batch(0, rank)))
    with torch.inference_mode():
        two = model(make_batch(0, rank)).clone()
    model.eval()
    losses, gradients, _ = train(model, 1, rank, optimizer)
    model.reshard()
    return one, two.tolist(), losses, gradients, parameters_of(model)


def test_no_grad_and_inference_mode():
    assert_same_as_fsdp2(2, without_graph)


def only_ours(rank, size, function, *args):
    import fsdp_cpp

    return function(fsdp_cpp, rank, size, *args)


class Branches(nn.Module):
    """Uses one of two layers, and never the third."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x, which):
        return self.layers[which](x) * self.scale


def unused_everywhere(fsdp, rank, size):
    torch.manual_seed(1)
    net = Branches()
    for layer in net.layers:
        fsdp.fully_shard(layer)
    fsdp.fully_shard(net)
    results = []
    for step in range(2):
        net(torch.full((2, 5), rank + 1.0), step).sum().backward()
        results.append(gradients_of(net))
        net.zero_grad()
    return results


def test_parameters_that_no_rank_uses():
    assert_same_as_fsdp2(2, unused_everywhere)


def used_by_some(rank, size):
    import fsdp_cpp

    torch.manual_seed(1)
    net = fsdp_cpp.fully_shard(Branches())
    net.set_reduce_scatter_unused_params(True)
    net(torch.full((2, 5), rank + 1.0), rank).sum().backward()
    return gradients_of(net)


def test_parameters_that_some_ranks_use():
    torch.manual_seed(1)
    plain = Branches()
    for rank in range(2):
        (plain(torch.full((2, 5), rank + 1.0), rank).sum() / 2).backward()
    for ours in run_ranks(2, used_by_some):
        assert_same(ours, gradients_of(plain))


def units_used_by_some(rank, size):
    import fsdp_cpp

    net = Branches()
    for layer in net.layers:
        fsdp_cpp.fully_shard(layer)
    fsdp_cpp.fully_shard(net)
    for layer in net.layers:
        layer.unshard()
    return error_of(lambda: net(torch.full((2, 5), rank + 1.0), rank).sum().backward())


def test_ranks_that_use_different_units_are_told():
    """FSDP2 sums the gradients of different parameters without an error if they have the same sizes."""
    for kind, text in run_ranks(2, units_used_by_some):
        assert kind == "DistBackendError"
        assert "layers.0" in text and "layers.1" in text and "rank 1" in text


class Failing(nn.Module):
    """Raises in forward or in backward when told to."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(13, 13)
        self.fails = None

    def forward(self, x):
        if self.fails == "forward":
            raise ValueError("forward was told to fail")
        return Fail.apply(self.layer(x), self)


class Fail(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.module.fails == "backward":
            raise ValueError("backward was told to fail")
        return grad, None


def after_failures(fsdp, rank, size):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(13, 13), Failing(), nn.Linear(13, 13))
    for layer in net:
        fsdp.fully_shard(layer)
    fsdp.fully_shard(net)
    results = []

    def step():
        torch.manual_seed(20 + rank)
        net(torch.randn(2, 13)).square().sum().backward()

    step()
    results.append(gradients_of(net))
    for fails in ("forward", "backward", "forward"):
        net[1].fails = fails
        results.append(error_of(step))
        net[1].fails = None
        net.reset_iter_state()
        net.zero_grad()
        step()
        results.append(gradients_of(net))
    return results


def test_exceptions_in_forward_and_backward():
    assert_same_as_fsdp2(2, after_failures)


def reset_while_accumulating(rank, size):
    import fsdp_cpp

    model = shard_model(fsdp_cpp, make_model())
    model.set_requires_gradient_sync(False)
    loss_of(model, make_batch(0, rank)).backward()
    model.reset_iter_state()
    model.set_requires_gradient_sync(True)
    loss_of(model, make_batch(1, rank)).backward()
    return gradients_of(model)


def test_reset_discards_accumulated_gradients():
    """As PyTorch documents it; FSDP2 itself keeps those that it has not reduced."""
    plain = make_model()
    for rank in range(2):
        (loss_of(plain, make_batch(1, rank)) / 2).backward()
    for ours in run_ranks(2, reset_while_accumulating):
        assert_same(ours, gradients_of(plain))


def checkpointed(fsdp, rank, size, reentrant):
    model = shard_model(fsdp, make_model(blocks=3))

    def forward(tokens):
        x = model.embedding(tokens).requires_grad_()
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return model.head(model.norm(x))

    model.forward = forward
    return train(model, 2, rank, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    assert_same_as_fsdp2(2, checkpointed, reentrant)


class Dictionary(nn.Module):
    """Results in nested containers, of which the loss uses some."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)

    def forward(self, x):
        return {"used": [self.one(x)], "unused": (self.two(x), None), "text": "x"}


def containers(fsdp, rank, size):
    torch.manual_seed(0)
    net = nn.Sequential(Dictionary())
    fsdp.fully_shard(net[0])
    fsdp.fully_shard(net)
    out = net(torch.full((2, 4), rank + 1.0))
    out["used"][0].sum().backward()
    return gradients_of(net)


def test_results_in_containers():
    assert_same_as_fsdp2(2, containers)


def gradients_by_grad(fsdp, rank, size):
    """A gradient with respect to activations only, through sharded modules."""
    model = shard_model(fsdp, make_model())
    x = torch.ones(2, 13, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.blocks[1](model.blocks[0](x)).sum(), x)
    return gradient, train(model, 1, rank, torch.optim.SGD(model.parameters(), lr=0.1))


def test_gradients_of_activations():
    for rank, (gradient, _) in enumerate(run_ranks(2, only_ours, gradients_by_grad)):
        model = make_model()
        x = torch.ones(2, 13, requires_grad=True)
        model.blocks[1](model.blocks[0](x)).sum().backward()
        assert_same(gradient, x.grad, f"rank {rank}")


def set_to_none(fsdp, rank, size):
    model = shard_model(fsdp, make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for step in range(3):
        loss_of(model, make_batch(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step != 1)
        results.append(gradients_of(model))
    return results, parameters_of(model)


def test_zero_grad_in_both_ways():
    assert_same_as_fsdp2(2, set_to_none)

"""Optimizers of torch.optim on sharded parameters, beside one process: equal to the bit."""

import copy
import io

import pytest
import torch
from torch.distributed.tensor import DTensor

from package_optimizers import (
    assert_same,
    batch,
    full,
    in_one_process,
    loss_of,
    make_net,
    shard,
    train,
    whole,
    whole_state,
)
from package_ranks import run_ranks

VARIANTS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD nesterov foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD momentum fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "SGD maximize": lambda p: torch.optim.SGD(p, lr=0.001, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "NAdam foreach": lambda p: torch.optim.NAdam(p, foreach=True, decoupled_weight_decay=True, weight_decay=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RAdam foreach": lambda p: torch.optim.RAdam(p, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "Adamax foreach": lambda p: torch.optim.Adamax(p, foreach=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "Adadelta foreach": lambda p: torch.optim.Adadelta(p, lr=1.0, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.5),
    "Adagrad foreach": lambda p: torch.optim.Adagrad(p, foreach=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "RMSprop centered": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True, foreach=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "Rprop foreach": lambda p: torch.optim.Rprop(p, foreach=True),
    "ASGD": lambda p: torch.optim.ASGD(p, t0=1),
    "ASGD foreach": lambda p: torch.optim.ASGD(p, t0=1, foreach=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Adafactor foreach": lambda p: torch.optim.Adafactor(p, foreach=True, weight_decay=0.1),
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2]),
    "Muon plain momentum": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2], nesterov=False),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3),
    "LBFGS line search": lambda p: torch.optim.LBFGS(p, max_iter=3, line_search_fn="strong_wolfe"),
}


# -- every optimizer --


def all_variants(rank, size):
    results = {}
    for name, make in VARIANTS.items():
        net = shard(make_net())
        optimizer = make(net.parameters())
        train(net, optimizer, rank=rank)
        results[name] = whole(net), whole_state(net, optimizer)
        for parameter in optimizer.param_groups[0]["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.dim() and "LBFGS" not in name:
                    assert type(value) is DTensor, (name, key)
        shards = whole(net)
        for one in ("0.weight", "5.bias"):  # the gathered copies have followed the steps
            assert torch.equal(net.get_parameter(one).detach(), shards[one]), (name, one)
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_optimizer_equals_one_process_to_the_bit(ranks):
    expected = {name: in_one_process(make) for name, make in VARIANTS.items()}
    for results in run_ranks(ranks, all_variants):
        for name in VARIANTS:
            assert_same(results[name][0], expected[name][0], name)
            assert_same(results[name][1], expected[name][1], f"state of {name}")


# -- what users see of a step --


def two_groups(rank, size):
    """Hooks, param groups, schedulers, copies and errors: the state is made of DTensors at all times."""
    net = shard(make_net())
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters[:3], lr=0.1)
    optimizer.add_param_group({"params": parameters[3:], "lr": 0.01, "weight_decay": 0.0})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    seen = []

    def look(optimizer, args, kwargs):
        assert all(
            listed is own for listed, own in zip(optimizer.param_groups[1]["params"], parameters[3:], strict=True)
        )
        seen.extend(type(state["exp_avg"]) for state in optimizer.state.values())

    optimizer.register_step_pre_hook(look)
    optimizer.register_step_post_hook(look)
    for step in range(3):
        for accumulated in range(2):
            loss_of(net, batch(10 * step + accumulated), rank).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    assert seen and set(seen) == {DTensor}
    copied = copy.deepcopy(optimizer.state_dict())
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    for other in (copied, torch.load(buffer, weights_only=False)):
        for index, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                assert type(other["state"][index][key]) is type(value)
                assert torch.equal(full(other["state"][index][key]), full(value))
    again = torch.optim.AdamW([{"params": parameters[:3]}, {"params": parameters[3:]}])
    again.load_state_dict(copied)
    loss_of(net, batch(100), rank).backward()
    again.step()
    return whole(net)


def two_groups_in_one_process():
    net = make_net()
    parameters = list(net.parameters())
    groups = [{"params": parameters[:3], "lr": 0.1}, {"params": parameters[3:], "lr": 0.01, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in range(3):
        for accumulated in range(2):
            loss_of(net, batch(10 * step + accumulated)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss_of(net, batch(100)).backward()
    optimizer.step()
    return whole(net)


def test_groups_schedulers_hooks_and_copies():
    expected = two_groups_in_one_process()
    for result in run_ranks(2, two_groups):
        assert_same(result, expected, "two groups")


class Halving(torch.optim.SGD):
    """A subclass with a step of its own around its parent's."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
        return super().step(closure)


class Own(torch.optim.Optimizer):
    """An optimizer of nobody's but the user's."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=0.01)


class Failure(Exception):
    pass


def special_optimizers(rank, size):
    results = {}
    for make in (lambda p: Halving(p, lr=0.1, momentum=0.9), Own):
        net = shard(make_net())
        train(net, make(net.parameters()), rank=rank)
        results[len(results)] = whole(net)

    # An exception in a closure, and one in the arithmetic of a step, leave a usable optimizer.
    net = shard(make_net())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train(net, optimizer, 2, rank)

    def fail():
        raise Failure

    with pytest.raises(Failure):
        optimizer.step(fail)
    first = next(iter(net.parameters()))
    step_of_first, optimizer.state[first]["step"] = optimizer.state[first]["step"], 1.0
    loss_of(net, batch(0), rank).backward()
    with pytest.raises(RuntimeError, match="singleton tensors"):
        optimizer.step()
    optimizer.state[first]["step"] = step_of_first
    optimizer.zero_grad()
    assert all(type(state["exp_avg"]) is DTensor for state in optimizer.state.values())
    train(net, optimizer, 2, rank, first=2)
    results["after errors"] = whole(net)

    # Several optimizers on one model, of which each has some parameters.
    net = shard(make_net())
    parameters = list(net.parameters())
    optimizers = [torch.optim.SGD(parameters[::2], lr=0.1), torch.optim.RMSprop(parameters[1::2])]
    for step in range(2):
        loss_of(net, batch(step), rank).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    results["several"] = whole(net)

    # Reductions in flight when step() is called.
    net = shard(make_net())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net.set_is_last_backward(False)
    loss_of(net, batch(0), rank).backward()
    optimizer.step()
    results["in flight"] = whole(net)
    return results


def test_subclasses_errors_and_several_optimizers():
    expected = {}
    for make in (lambda p: Halving(p, lr=0.1, momentum=0.9), Own):
        expected[len(expected)] = in_one_process(make)[0]
    expected["after errors"] = in_one_process(lambda p: torch.optim.Adam(p, lr=0.01))[0]
    net = make_net()
    parameters = list(net.parameters())
    optimizers = [torch.optim.SGD(parameters[::2], lr=0.1), torch.optim.RMSprop(parameters[1::2])]
    for step in range(2):
        loss_of(net, batch(step)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    expected["several"] = whole(net)
    expected["in flight"] = in_one_process(lambda p: torch.optim.AdamW(p, lr=0.01), steps=1)[0]
    for result in run_ranks(2, special_optimizers):
        assert_same(result, expected, "special")


def refusals(rank, size):
    net = make_net()
    early = torch.optim.AdamW(net.parameters(), lr=0.1)
    shard(net)
    before = whole(net)
    loss_of(net, batch(0)).backward()
    with pytest.raises(RuntimeError, match="AdamW holds a whole parameter, of shape .13, 5., of a sharded module"):
        early.step()
    sparse = torch.optim.SparseAdam(list(net.parameters()))
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        sparse.step()
    assert_same(whole(net), before, "refused")


def test_optimizers_that_are_refused():
    run_ranks(2, refusals)


# -- torch.compile --


def compiled_steps(rank, size):
    net = shard(make_net())
    loss_of(net, batch(0), rank).backward()
    for make in (VARIANTS["AdamW"], VARIANTS["SGD momentum"]):
        optimizer = make(net.parameters())
        with pytest.raises(NotImplementedError, match="torch.compile of .*.step over sharded parameters"):
            torch.compile(optimizer.step, backend="eager")()
    plain = make_net()  # other optimizers of the process compile
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    loss_of(plain, batch(0)).backward()
    torch.compile(optimizer.step, backend="eager")()
    return whole(plain)


def test_a_compiled_step_is_refused():
    expected, _ = in_one_process(VARIANTS["SGD"], steps=1)
    for result in run_ranks(1, compiled_steps):
        assert_same(result, expected, "compiled")

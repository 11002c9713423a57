"""Optimizers built on the module's parameters by habit, and clearing gradients by habit."""

import copy

import pytest
import torch
from torch import nn, optim

from adversarial_models import IDS, squares, transformer, transformer_loss, two_linears
from adversarial_support import (
    Sharded,
    assert_all_bit_equal,
    assert_bit_equal,
    assert_nothing_left_behind,
    local_gradients,
    own_process,
    refuses,
)

OPTIMIZERS = {
    "adamw_foreach": lambda p: optim.AdamW(p, foreach=True),
    "adamw_for_loop": lambda p: optim.AdamW(p, foreach=False),
    "adamw_fused": lambda p: optim.AdamW(p, fused=True),
    "adam_amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "sgd": lambda p: optim.SGD(p, 0.1),
    "sgd_momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "sgd_foreach": lambda p: optim.SGD(p, 0.1, foreach=True),
    "sgd_fused": lambda p: optim.SGD(p, 0.1, fused=True),
    "sgd_maximize": lambda p: optim.SGD(p, 0.1, maximize=True),
    "adagrad": lambda p: optim.Adagrad(p),
    "adagrad_fused": lambda p: optim.Adagrad(p, fused=True),
    "adadelta": lambda p: optim.Adadelta(p),
    "adamax": lambda p: optim.Adamax(p),
    "asgd": lambda p: optim.ASGD(p),
    "nadam": lambda p: optim.NAdam(p),
    "radam": lambda p: optim.RAdam(p),
    "rmsprop": lambda p: optim.RMSprop(p),
    "rprop": lambda p: optim.Rprop(p),
    "adafactor": lambda p: optim.Adafactor(p),
    "lbfgs": lambda p: optim.LBFGS(p),
}
# These write to parameters before they read a gradient.
DECAYS_FIRST = {"adamw_foreach", "adamw_for_loop", "asgd"}


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@own_process
def test_optimizer_on_the_modules_parameters_raises_at_its_first_step(name, strict):
    module = two_linears()
    Sharded(module, strict=strict)
    optimizer = OPTIMIZERS[name](module.parameters())
    squares(module).backward()
    with refuses("parameter '", "ShardedModule::parameters()"):
        optimizer.step(lambda: squares(module)) if name == "lbfgs" else optimizer.step()
    if name not in DECAYS_FIRST:
        assert_bit_equal(squares(module), squares(two_linears()))


@pytest.mark.parametrize("set_to_none", [True, False])
@own_process
def test_optimizer_that_clears_gradients_first(set_to_none):
    module = two_linears()
    Sharded(module)
    optimizer = optim.SGD(module.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad(set_to_none)
        squares(module).backward()
    with refuses("parameter '"):
        optimizer.step()


@own_process
def test_optimizer_made_before_sharding():
    module = two_linears()
    optimizer = optim.AdamW(module.parameters())
    Sharded(module)
    squares(module).backward()
    with refuses("parameter '"):
        optimizer.step()


@pytest.mark.parametrize("foreach", [True, False])
@own_process
def test_clipping_the_modules_gradients_is_refused(foreach):
    module = two_linears()
    Sharded(module)
    squares(module).backward()
    with refuses("clip_grad_norm_"):
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=foreach)
    with refuses("gradient"):
        nn.utils.clip_grad_value_(module.parameters(), 1.0, foreach=foreach)
    with refuses("gradient"):
        nn.utils.get_total_norm([p.grad for p in module.parameters()])


@own_process
def test_gradient_scaler_on_the_modules_parameters_is_refused():
    module = two_linears()
    Sharded(module)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = optim.SGD(module.parameters(), 0.1)
    scaler.scale(squares(module)).backward()
    with refuses("gradient"):
        scaler.step(optimizer)


@own_process
def test_optimizer_in_backward_is_refused():
    module = two_linears()
    Sharded(module)
    optimizers = {p: optim.SGD([p], 0.1) for p in module.parameters()}
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    with refuses("parameter '", "ShardedModule::parameters()"):
        squares(module).backward()


@own_process
def test_gradient_assigned_to_the_module_is_refused():
    module = two_linears()
    Sharded(module)
    module[0].weight.grad = torch.ones(8, 8)
    with refuses("parameter '0.weight'"):
        squares(module).backward()


CLEARINGS = {
    "module": lambda module, sharded: module.zero_grad(),
    "module_to_zero": lambda module, sharded: module.zero_grad(set_to_none=False),
    "optimizer_to_zero": lambda module, sharded: optim.SGD(module.parameters(), 0.1).zero_grad(set_to_none=False),
    "by_hand": lambda module, sharded: [setattr(p, "grad", None) for p in module.parameters()],
    "by_zero_": lambda module, sharded: [p.grad.zero_() for p in module.parameters()],
    "engine": lambda module, sharded: sharded.engine.zero_grad(True),
    "engine_to_zero": lambda module, sharded: sharded.engine.zero_grad(False),
}


@pytest.mark.parametrize("clearing", CLEARINGS)
@own_process
def test_cleared_gradients_do_not_count(clearing):
    module = two_linears()
    plain = copy.deepcopy(module)
    sharded = Sharded(module)
    (3 * squares(module)).backward()
    CLEARINGS[clearing](module, sharded)
    squares(plain).backward()
    squares(module).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))
    assert_nothing_left_behind(sharded)


@own_process
def test_gradients_of_one_parameter_cleared():
    module = two_linears()
    plain = copy.deepcopy(module)
    sharded = Sharded(module)
    for model in (plain, module):
        squares(model).backward()
        model[0].weight.grad = None
        squares(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


TRAINING = {"adamw_foreach": dict(foreach=True), "adamw_for_loop": dict(foreach=False), "adamw_fused": dict(fused=True)}


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@pytest.mark.parametrize("name", TRAINING)
@own_process
def test_optimizer_on_the_shards_trains_as_on_plain_parameters(name, strict):
    module = transformer()
    plain = copy.deepcopy(module)
    sharded = Sharded(module, strict=strict)
    on_plain = optim.AdamW(plain.parameters(), 1e-2, eps=1e-3, **TRAINING[name])
    on_shards = optim.AdamW(sharded.leaves().values(), 1e-2, eps=1e-3, **TRAINING[name])
    for _ in range(4):
        on_plain.zero_grad()
        module.zero_grad()
        expected, loss = transformer_loss(plain), transformer_loss(module)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        expected.backward()
        loss.backward()
        torch.testing.assert_close(
            torch.tensor(sharded.engine.clip_grad_norm_(1.0)),
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0),
            rtol=1e-5,
            atol=0,
        )
        on_plain.step()
        on_shards.step()
    for name, parameter in sharded.full_parameters().items():
        torch.testing.assert_close(parameter, plain.get_parameter(name).detach(), rtol=1e-5, atol=1e-6)


@own_process
def test_average_of_a_model():
    module = two_linears()
    plain = copy.deepcopy(module)
    sharded = Sharded(module)
    averages = [optim.swa_utils.AveragedModel(model) for model in (plain, module)]
    with torch.no_grad():
        plain[0].weight.mul_(2)
        sharded.leaves()["0.weight"].mul_(2)
    for average, model in zip(averages, (plain, module)):
        average.update_parameters(model)
        average.update_parameters(model)
    assert_bit_equal(squares(averages[1]), squares(averages[0]))


@own_process
def test_sparse_optimizer_on_the_modules_parameters_raises_at_its_first_step():
    torch.manual_seed(3)
    module = nn.Sequential(nn.Embedding(20, 8, sparse=True))
    weight = module[0].weight.detach().clone()
    sharded = Sharded(module)
    optimizer = optim.SparseAdam(module.parameters())
    module(IDS).pow(2).sum().backward()
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert_bit_equal(sharded.full_parameters()["0.weight"], weight)

"""Uses of parameters that no argument list shows: custom operators, worker threads, kernels below the dispatcher
key."""

import copy
import threading

import pytest
import torch
from torch import nn

from adversarial_models import X, squares, two_linears
from adversarial_support import (
    Sharded,
    assert_all_bit_equal,
    assert_bit_equal,
    assert_trains_like_plain,
    local_gradients,
    own_process,
)

STRICT = pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])


def custom_operator(module):
    """An operator that gets one parameter and holds a whole module."""

    @torch.library.custom_op("fsdp_adversarial::hidden", mutates_args=())
    def hidden(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return module(x @ w).detach()

    return hidden


@STRICT
@own_process
def test_custom_operator_that_holds_a_module(strict):
    model = two_linears()
    expected = two_linears()[2](X @ two_linears()[0].weight)
    Sharded(model, strict=strict)
    assert_bit_equal(custom_operator(model[2])(X, model[0].weight), expected)


@STRICT
@own_process
def test_custom_operator_without_parameters_among_its_arguments(strict):
    model = two_linears()
    expected = two_linears()(X)

    @torch.library.custom_op("fsdp_adversarial::whole", mutates_args=())
    def whole(x: torch.Tensor) -> torch.Tensor:
        return model(x).detach()

    Sharded(model, strict=strict)
    assert_bit_equal(whole(X), expected)


@STRICT
@own_process
def test_custom_operator_with_a_backward(strict):
    @torch.library.custom_op("fsdp_adversarial::product", mutates_args=())
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w.t(), x.t() @ gradient

    product.register_autograd(backward, setup_context=save)
    assert_trains_like_plain(
        two_linears(), lambda model: product(product(X, model[0].weight), model[2].weight).pow(2).sum(), strict=strict
    )


@STRICT
@own_process
def test_custom_operator_that_writes_to_a_parameter(strict):
    model = two_linears()

    @torch.library.custom_op("fsdp_adversarial::fill", mutates_args=("w",))
    def fill(w: torch.Tensor) -> None:
        w.fill_(1)

    plain = two_linears()
    Sharded(model, strict=strict)
    with torch.no_grad():
        fill(model[0].weight)
        plain[0].weight.fill_(1)
    assert_bit_equal(squares(model), squares(plain))


@STRICT
@own_process
def test_backward_inside_a_custom_operator(strict):
    model = two_linears()
    plain = two_linears()
    squares(plain).backward()

    @torch.library.custom_op("fsdp_adversarial::train", mutates_args=())
    def train(w: torch.Tensor) -> torch.Tensor:
        loss.backward()
        return w.clone()

    sharded = Sharded(model, strict=strict)
    loss = squares(model)
    with torch.no_grad():
        train(model[0].weight)
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@STRICT
@own_process
def test_backward_inside_a_hook_of_a_backward(strict):
    model = two_linears()
    plain = copy.deepcopy(model)

    def train(module):
        x = X.clone().requires_grad_()
        inner = module[2](X).sum()
        x.register_hook(lambda gradient: inner.backward())
        module(x).pow(2).sum().backward()

    train(plain)
    sharded = Sharded(model, strict=strict)
    train(model)
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@own_process
def test_backward_on_another_thread():
    model = two_linears()
    plain = two_linears()
    squares(plain).backward()
    sharded = Sharded(model)
    loss = squares(model)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@own_process
def test_parallel_backwards_of_threads():
    model = two_linears()
    plain = two_linears()
    for _ in range(4):
        squares(plain).backward()
    sharded = Sharded(model)
    losses = [squares(model) for _ in range(4)]
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, gradient in sharded.gradients().items():
        torch.testing.assert_close(gradient, local_gradients(plain)[name])


@STRICT
@own_process
def test_kernels_with_several_threads(strict):
    torch.set_num_threads(4)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(256, 300), nn.GELU(), nn.Linear(300, 256))
    x = torch.randn(64, 256)
    assert_trains_like_plain(model, lambda module: module(x).pow(2).mean(), strict=strict)


@own_process
def test_parallel_apply_in_threads():
    modules = nn.ModuleList([two_linears(), two_linears()])
    expected = two_linears()(X)
    Sharded(modules)
    for output in [torch.jit.wait(torch.jit.fork(module, X)) for module in modules]:
        assert_bit_equal(output, expected)


@own_process
def test_bfloat16_parameters_in_a_kernel_without_the_dispatcher():
    """Quantised linear layers pack their weight with one operator and then hold a private copy."""
    model = two_linears().eval()
    expected = torch.ao.quantization.quantize_dynamic(two_linears().eval(), {nn.Linear})(X)
    Sharded(model)
    assert_bit_equal(torch.ao.quantization.quantize_dynamic(model, {nn.Linear})(X), expected)

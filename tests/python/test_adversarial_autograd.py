"""Forward and backward in every way that autograd offers, under the strictest release."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from adversarial_models import IDS, IMAGES, X, convolutions, linear, squares, transformer, transformer_loss, two_linears
from adversarial_support import (
    Sharded,
    assert_all_bit_equal,
    assert_bit_equal,
    assert_nothing_left_behind,
    assert_trains_like_plain,
    local_gradients,
    one_unit,
    own_process,
    refuses,
    right_or_refused,
    unit_per_module,
)

# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@pytest.mark.parametrize("units", [unit_per_module, one_unit], ids=lambda units: units.__name__)
@own_process
def test_transformer(units, strict):
    assert_trains_like_plain(transformer(), transformer_loss, units=units, strict=strict)


class Views(nn.Module):
    """Saves every kind of view of a parameter for backward."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))
        self.pairs = nn.Parameter(torch.randn(6, 4, 2))

    def forward(self, x):
        strided = self.w.as_strided((4, 4), (16, 2), 1)
        upper, lower = self.w.chunk(2)
        return (
            (x @ self.w.t()).exp().sum()
            + (strided @ strided).sum()
            + (upper * lower).sum()
            + (self.w[1:5, 2:6].unsqueeze(0).expand(3, 4, 4) @ strided).pow(2).sum()
            + torch.view_as_complex(self.pairs).abs().sum()
            + (self.w.unfold(0, 2, 2) ** 2).sum()
            + self.w.diagonal().prod()
            + (x @ self.w.t().reshape(4, 16).reshape(8, 8)).exp().sum()
            + self.w.t().contiguous().pow(2).sum()
            + self.w.t().flatten().sum()
            + self.w.to(torch.float64).sum()
            + sum(row.prod() for row in self.w.unbind())
            + self.w.movedim(0, 1).swapaxes(0, 1).mT.square().sum()
        )


@own_process
def test_views_of_parameters_saved_for_backward():
    torch.manual_seed(3)
    assert_trains_like_plain(Views(), lambda module: module(X))


@own_process
def test_channels_last():
    model = convolutions().to(memory_format=torch.channels_last)
    images = IMAGES.to(memory_format=torch.channels_last)
    sharded = assert_trains_like_plain(model, lambda module: module(images).pow(2).mean())
    assert sharded.module[0].weight.is_contiguous(memory_format=torch.channels_last)


@own_process
def test_bfloat16_convolutions():
    assert_trains_like_plain(convolutions().bfloat16(), lambda module: module(IMAGES.bfloat16()).float().pow(2).mean())


def odd_sizes():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, 7), nn.LayerNorm(7), nn.Linear(7, 129), nn.GELU(), nn.Linear(129, 65), nn.LayerNorm(65)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@own_process
def test_odd_sizes_in_one_unit(dtype):
    assert_trains_like_plain(
        odd_sizes().to(dtype), lambda module: module(X.to(dtype)).float().pow(2).sum(), units=one_unit
    )


@own_process
def test_computing_in_bfloat16_from_float32_shards():
    assert_trains_like_plain(transformer(), transformer_loss, compute=torch.bfloat16)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8)
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x):
        return self.cell(self.gru(self.lstm(x)[0])[0][:, -1])[0].pow(2).sum()


@own_process
def test_recurrent_training_and_evaluation():
    torch.manual_seed(3)
    model, x = Recurrent(), torch.randn(3, 5, 8)
    plain = copy.deepcopy(model)
    assert_trains_like_plain(model, lambda module: module(x))
    with torch.no_grad():
        assert_bit_equal(model.eval()(x), plain.eval()(x))


# ---------------------------------------------------------------- passes


@own_process
def test_two_backwards_of_one_graph():
    def backward(loss):
        loss.backward(retain_graph=True)
        loss.backward()

    assert_trains_like_plain(transformer(), transformer_loss, backward=backward)


@own_process
def test_two_forwards_before_one_backward():
    assert_trains_like_plain(transformer(), lambda model: transformer_loss(model) * transformer_loss(model))


@own_process
def test_accumulation_over_three_backwards():
    model = transformer()
    plain = copy.deepcopy(model)
    sharded = Sharded(model)
    for _ in range(3):
        transformer_loss(plain).backward()
        transformer_loss(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@own_process
def test_shard_written_between_forward_and_backward(strict):
    model = two_linears()
    sharded = Sharded(model, strict=strict)
    loss = squares(model)
    with torch.no_grad():
        sharded.leaves()["2.weight"].mul_(2)
    with pytest.raises(RuntimeError, match="written between forward and backward|modified by an inplace operation"):
        loss.backward()


@own_process
def test_shard_written_between_two_backwards_of_one_graph():
    model = two_linears()
    sharded = Sharded(model)
    loss = squares(model)
    loss.backward(retain_graph=True)
    with torch.no_grad():
        sharded.leaves()["2.weight"].mul_(2)
    with pytest.raises(RuntimeError, match="written between forward and backward|modified by an inplace operation"):
        loss.backward()


@own_process
def test_gradient_penalty():
    def loss_of(module):
        x = X.clone().requires_grad_()
        y = module(x).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.pow(2).sum()

    assert_trains_like_plain(two_linears(), loss_of)


@own_process
def test_backward_with_create_graph_is_refused():
    model = two_linears()
    Sharded(model)
    with refuses("create_graph", "parameter '2.bias'"):
        squares(model).backward(create_graph=True)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@own_process
def test_autograd_grad_returns_local_gradients_and_captures_nothing(strict):
    model = transformer()
    plain = copy.deepcopy(model)
    expected = torch.autograd.grad(transformer_loss(plain), list(plain.parameters()))
    sharded = Sharded(model, strict=strict)
    loss = transformer_loss(model)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert_all_bit_equal(gradients, expected)
    assert sharded.gradients() == {}
    assert sharded.engine.gathered_units() == 0


@own_process
def test_hessian_vector_product():
    model = two_linears()
    plain = copy.deepcopy(model)
    Sharded(model)

    def product(module):
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(squares(module), parameters, create_graph=True)
        return torch.autograd.grad(sum(g.sum() for g in gradients), parameters)

    assert_all_bit_equal(product(model), product(plain))


@own_process
def test_backward_into_some_inputs_only():
    model = two_linears()
    plain = copy.deepcopy(model)
    squares(plain).backward(inputs=[plain[0].weight])
    sharded = Sharded(model, one_unit)
    squares(model).backward(inputs=[model[0].weight])
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))
    assert_nothing_left_behind(sharded)


@own_process
def test_parameter_that_is_the_root_of_the_graph():
    assert_trains_like_plain(linear(), lambda module: module.weight[0, 0])


@own_process
def test_unused_parameters_get_no_gradient():
    assert_trains_like_plain(transformer(layers=3), lambda model: model.layers[1](model.embedding(IDS)).pow(2).sum())


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("on purpose")


def fail_in_backward(model):
    with pytest.raises(ValueError, match="on purpose"):
        model[2](Fails.apply(model[0](X))).sum().backward()


@own_process
def test_backward_that_throws_before_its_unit_is_complete_leaves_nothing():
    model = two_linears()
    plain = copy.deepcopy(model)
    squares(plain).backward()
    sharded = Sharded(model, one_unit)
    fail_in_backward(model)
    squares(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))
    assert_nothing_left_behind(sharded)


@pytest.mark.parametrize("clear", ["module", "set_to_none", "zero"])
@own_process
def test_gradients_cleared_after_a_backward_that_threw(clear):
    """Units that were complete before the exception may be reduced: as with plain tensors, what arrived has arrived."""
    model = two_linears()
    plain = copy.deepcopy(model)
    squares(plain).backward()
    sharded = Sharded(model)
    fail_in_backward(model)
    if clear == "module":
        model.zero_grad()
    else:
        sharded.engine.zero_grad(clear == "set_to_none")
    squares(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))
    assert_nothing_left_behind(sharded)


# ---------------------------------------------------------------- checkpointing


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non_reentrant"])
@own_process
def test_checkpointing(reentrant, strict):
    assert_trains_like_plain(transformer(reentrant=reentrant), transformer_loss, strict=strict)


@own_process
def test_nested_reentrant_checkpointing():
    def loss_of(model):
        inner = checkpoint(model.layers[0], model.embedding(IDS), use_reentrant=True)
        return checkpoint(model.layers[2], inner, use_reentrant=True).pow(2).mean()

    assert_trains_like_plain(transformer(layers=3), loss_of)


@own_process
def test_layer_used_in_two_reentrant_checkpoints():
    x = X.clone().requires_grad_()

    def loss_of(module):
        return checkpoint(module, torch.tanh(checkpoint(module, x, use_reentrant=True)), use_reentrant=True).sum()

    assert_trains_like_plain(linear(), loss_of)


@own_process
def test_selective_checkpointing():
    def policy(context, operator, *args, **kwargs):
        keep = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    def loss_of(module):
        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        return checkpoint(module, X, use_reentrant=False, context_fn=contexts).pow(2).sum()

    assert_trains_like_plain(two_linears(), loss_of)


# ---------------------------------------------------------------- saved tensors and hooks


@pytest.mark.parametrize("pack", [lambda t: t, torch.clone, torch.detach], ids=["identity", "clone", "detach"])
@own_process
def test_saved_tensors_hooks(pack):
    def loss_of(model):
        with saved_tensors_hooks(pack, lambda t: t):
            return transformer_loss(model)

    assert_trains_like_plain(transformer(), loss_of)


@own_process
def test_save_on_cpu():
    def loss_of(model):
        with save_on_cpu():
            return transformer_loss(model)

    assert_trains_like_plain(transformer(), loss_of)


@own_process
def test_packing_saved_parameters_to_numpy_while_they_are_pinned():
    """An array does not know when its memory is released, so it must not outlive a pin."""

    def loss_of(module):
        with saved_tensors_hooks(lambda t: t.detach().numpy(), torch.from_numpy):
            return squares(module)

    model = two_linears()
    plain = copy.deepcopy(model)
    loss_of(plain).backward()
    sharded = Sharded(model)
    with sharded.pin():
        loss_of(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


class Product(torch.autograd.Function):
    """Keeps parameters with save_for_backward and as a plain attribute."""

    @staticmethod
    def forward(context, x, w, v):
        context.save_for_backward(x, w)
        context.v = v
        return x @ w.t() @ v.detach().t()

    @staticmethod
    def backward(context, gradient):
        (x, w), v = context.saved_tensors, context.v
        return gradient @ v @ w, (gradient @ v).t() @ x, gradient.t() @ (x @ w.t())


@own_process
def test_custom_function():
    assert_trains_like_plain(
        two_linears(), lambda module: Product.apply(X, module[0].weight, module[2].weight).pow(2).sum()
    )


@own_process
def test_custom_function_that_returns_the_parameter_as_gradient():
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(context, x, w, v):
            context.save_for_backward(w, v)
            return x @ w

        @staticmethod
        def backward(context, gradient):
            w, v = context.saved_tensors
            return None, v, w.t()

    assert_trains_like_plain(two_linears(), lambda module: Odd.apply(X, module[0].weight, module[2].weight).sum())


@pytest.mark.parametrize("when", ["before", "after"])
@own_process
def test_tensor_hooks_change_what_is_captured(when):
    model = linear()
    plain = copy.deepcopy(model)
    plain.weight.register_hook(lambda gradient: gradient * 2)
    squares(plain).backward()
    if when == "before":
        model.weight.register_hook(lambda gradient: gradient * 2)
    sharded = Sharded(model)
    if when == "after":
        model.weight.register_hook(lambda gradient: gradient * 2)
    squares(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@own_process
def test_post_accumulate_hooks_fire_and_see_the_sentinel():
    model = linear()
    sharded = Sharded(model)
    seen = []
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(sharded.engine.is_gradient_sentinel(p.grad)))
    model.weight.retain_grad()
    squares(model).backward()
    assert seen == [True]


@own_process
def test_module_hooks():
    model = two_linears()
    calls = []
    model[0].register_forward_hook(lambda *arguments: calls.append("forward"))
    model[0].register_full_backward_hook(lambda *arguments: calls.append("backward"))
    assert_trains_like_plain(model, squares)
    assert calls == ["forward", "backward"] * 2


@own_process
def test_sparse_gradients():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4))
    assert_trains_like_plain(model, lambda module: module(IDS).pow(2).sum())


@own_process
def test_anomaly_mode():
    with torch.autograd.detect_anomaly(check_nan=True):
        assert_trains_like_plain(transformer(), transformer_loss)


@own_process
def test_autocast():
    def loss_of(model):
        with torch.autocast("cpu", torch.bfloat16):
            return transformer_loss(model)

    assert_trains_like_plain(transformer(), loss_of)


@own_process
def test_compiled_autograd():
    model = two_linears()
    plain = copy.deepcopy(model)
    squares(plain).backward()
    sharded = Sharded(model)
    loss = squares(model)
    with right_or_refused():
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


# ---------------------------------------------------------------- without gradients


@own_process
def test_inference_mode_and_training_afterwards():
    model = transformer()
    plain = copy.deepcopy(model)
    expected = transformer_loss(plain)
    expected.backward()
    sharded = Sharded(model)
    with torch.inference_mode():
        assert_bit_equal(transformer_loss(model), expected)
    transformer_loss(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@own_process
def test_sharding_inside_inference_mode():
    model = two_linears()
    plain = copy.deepcopy(model)
    squares(plain).backward()
    with torch.inference_mode():
        sharded = Sharded(model)
        assert_bit_equal(squares(model), squares(plain))
    squares(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@own_process
def test_inference_in_several_threads(strict):
    model = transformer()
    expected = transformer_loss(model).detach()
    Sharded(model, strict=strict)
    wrong = []

    def infer():
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(transformer_loss(model), expected):
                    wrong.append(threading.get_ident())

    threads = [threading.Thread(target=infer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@own_process
def test_frozen_parameters_beside_trainable_ones():
    model = transformer()
    for parameter in model.layers[0].parameters():
        parameter.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    assert_trains_like_plain(model, transformer_loss, units=one_unit)


@own_process
def test_tied_parameters():
    model = transformer()
    model.head.weight = model.embedding.weight
    assert_trains_like_plain(model, lambda module: F.cross_entropy(module(IDS).flatten(0, 1), IDS.flatten()))

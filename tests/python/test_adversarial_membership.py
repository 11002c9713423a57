"""Parameters that leave the engine, and odd parameters that enter it."""

import copy

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from adversarial_models import X, linear, squares, two_linears
from adversarial_support import (
    Sharded,
    assert_all_bit_equal,
    assert_bit_equal,
    assert_trains_like_plain,
    local_gradients,
    one_unit,
    own_process,
    refuses,
)

STRICT = pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])


def assign_data(module):
    module.weight.data = torch.ones(8, 8)


def assign_data_of_another_dtype(module):
    module.weight.data = module.weight.data.double()
    module.bias.data = module.bias.data.double()


def assign_data_of_another_parameter(module):
    other = linear()
    Sharded(other)
    module.weight.data = other.weight.data
    module.other = other


def from_a_vector(module):
    nn.utils.vector_to_parameters(torch.arange(72.0) / 72, module.parameters())


def set_memory(module):
    with torch.no_grad():
        module.weight.set_(torch.ones(8, 8))


def to_empty(module):
    module.to_empty(device="cpu")


DEPARTURES = [
    assign_data,
    assign_data_of_another_dtype,
    assign_data_of_another_parameter,
    from_a_vector,
    set_memory,
    nn.Module.double,
    nn.Module.bfloat16,
    nn.Module.half,
    to_empty,
]


@STRICT
@pytest.mark.parametrize("leave", DEPARTURES, ids=lambda function: function.__name__)
@own_process
def test_parameter_that_leaves_is_noticed_before_a_wrong_step(leave, strict):
    """At the operation itself, at the next gather or at the latest when its gradient arrives; and it is named."""
    module = linear()
    Sharded(module, strict=strict)
    squares(module)
    with refuses("parameter '"):
        leave(module)
        module(X.to(module.weight)).pow(2).sum().backward()


@STRICT
@own_process
def test_requires_grad_changes(strict):
    module = two_linears()
    plain = two_linears()
    for model in (plain, module):
        model[0].weight.requires_grad = False
    sharded = Sharded(module, strict=strict)
    for model in (plain, module):
        squares(model).backward()
        model.zero_grad()
        model[0].requires_grad_(True)
        model[2].bias.requires_grad = False
        squares(model).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))
    assert module[2].bias.grad is None


@STRICT
@own_process
def test_parameter_cannot_leave_between_forward_and_backward(strict):
    module = two_linears()
    Sharded(module, strict=strict)
    loss = squares(module)
    with refuses("parameter '2.weight'"):
        module[2].weight.data = torch.ones(8, 8)
    loss.backward()


@own_process
def test_conversion_is_refused_for_a_parameter_with_a_hook():
    module = linear()
    module.weight.register_hook(lambda gradient: gradient)
    Sharded(module)
    with refuses("parameter 'weight'"):
        module.weight.data = module.weight.data.double()
    module.weight.sum().backward()


@own_process
def test_conversion_to_meta_gives_the_module_other_parameters():
    """PyTorch puts new parameters into the module there; the engine's stay as they were, and untouched."""
    module = linear()
    sharded = Sharded(module)
    ours = module.weight
    module.to("meta")
    assert module.weight is not ours and module.weight.is_meta
    assert_all_bit_equal(sharded.full_parameters(), dict(linear().named_parameters()))


@own_process
def test_swapping_tensors_is_refused_by_torch():
    module = linear()
    Sharded(module)
    with pytest.raises(RuntimeError, match="use_count"):
        torch.utils.swap_tensors(module.weight, nn.Parameter(torch.ones(8, 8)))
    torch.__future__.set_swap_module_params_on_conversion(True)
    with refuses("parameter 'weight'"):
        module.double()
    assert_bit_equal(squares(module), squares(linear()))


@pytest.mark.parametrize(
    "conversion",
    [
        nn.Module.float,
        nn.Module.cpu,
        lambda m: m.to("cpu", torch.float32),
        lambda m: m.to(memory_format=torch.contiguous_format),
        nn.Module.eval,
        lambda m: m.requires_grad_(True),
        nn.Module.share_memory,
    ],
    ids=["float", "cpu", "to", "memory_format", "eval", "requires_grad", "share_memory"],
)
@own_process
def test_conversion_that_changes_nothing(conversion):
    module = linear()
    sharded = Sharded(module)
    try:
        conversion(module)
    except RuntimeError:
        assert conversion is nn.Module.share_memory
    squares(module).backward()
    assert sharded.gradients().keys() == {"weight", "bias"}


@own_process
def test_parameter_in_two_units_is_refused():
    module = linear()
    Sharded(module)
    with refuses("weight"):
        Sharded(module)
    assert_bit_equal(squares(module), squares(linear()))


# ---------------------------------------------------------------- odd parameters


@own_process
def test_arguments_in_lists():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8))
            self.v = nn.Parameter(torch.randn(8))
            self.order = nn.Parameter(torch.arange(8).flip(0), requires_grad=False)

        def forward(self, x):
            order = self.order
            return (
                (x[:, order] @ self.w[order, :][:, order]).sum()
                + torch.stack([self.w[0], self.v]).prod()
                + sum(t.sum() for t in torch._foreach_mul([self.w, self.v], 2.0))
                + torch.block_diag(self.w, self.v[None]).sum()
                + torch.einsum("ij,j,i->", self.w, self.v, self.v)
                + torch.index_put(self.w, (order, order), self.v).pow(2).sum()
                + torch.cartesian_prod(self.v, self.v).sum()
                + torch.meshgrid(self.v, self.v, indexing="ij")[0].sum()
            )

    torch.manual_seed(3)
    assert_trains_like_plain(Lists(), lambda module: module(X), units=one_unit)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
@own_process
def test_frozen_parameter_of_integers(dtype):
    class Gather(nn.Module):
        def __init__(self):
            super().__init__()
            self.chosen = nn.Parameter(torch.tensor([1, 0, 0, 1, 1, 0, 1, 0]).to(dtype), requires_grad=False)
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return (x * self.scale)[:, self.chosen.long()].sum()

    assert_trains_like_plain(Gather(), lambda module: module(X), units=one_unit)


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
@own_process
def test_scalars_and_empty_parameters(compute):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scalar = nn.Parameter(torch.tensor(2.0))
            self.empty = nn.Parameter(torch.empty(0, 4))
            self.row = nn.Parameter(torch.randn(3))

        def forward(self):
            return self.scalar * self.row.sum() + self.empty.sum()

    torch.manual_seed(3)
    assert_trains_like_plain(Odd(), lambda module: module().float(), units=one_unit, compute=compute)


@own_process
def test_parameters_of_several_dtypes_in_one_unit():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.single = nn.Parameter(torch.randn(8, 8))
            self.double_ = nn.Parameter(torch.randn(8, dtype=torch.float64))
            self.half_ = nn.Parameter(torch.randn(8).bfloat16())

        def forward(self, x):
            return ((x @ self.single).double() * self.double_).sum() + self.half_.float().sum()

    torch.manual_seed(3)
    assert_trains_like_plain(Mixed(), lambda module: module(X), units=one_unit)


@pytest.mark.parametrize(
    "geometry",
    [
        lambda: torch.randn(8).expand(8, 8),
        lambda: torch.randn(8, 8).t(),
        lambda: torch.randn(16, 16)[::2, ::2],
        lambda: torch.randn(100)[3:67].view(8, 8),
        lambda: torch.randn(8, 8, 8)[2],
    ],
    ids=["expanded", "transposed", "strided", "offset", "selected"],
)
@own_process
def test_parameter_of_odd_geometry(geometry):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(geometry())

        def forward(self, x):
            return (x @ self.w).pow(2).sum()

    torch.manual_seed(3)
    module = Product()
    plain = copy.deepcopy(module)
    plain.w.data = module.w.detach().clone()
    plain(X).backward()
    sharded = Sharded(module)
    loss = module(X)
    loss.backward()
    torch.testing.assert_close(loss, plain(X))
    torch.testing.assert_close(sharded.gradients(), local_gradients(plain))


class Marked(torch.Tensor):
    """A subclass without a memory of its own kind."""


@own_process
def test_parameter_of_a_subclass():
    torch.manual_seed(3)
    module = nn.Linear(8, 8, bias=False)
    expected = squares(module)
    module.weight = nn.Parameter(module.weight.detach().as_subclass(Marked))
    sharded = Sharded(module)
    loss = squares(module)
    loss.backward()
    assert isinstance(module.weight, Marked)
    assert_bit_equal(loss.as_subclass(torch.Tensor), expected)
    assert sharded.gradients().keys() == {"weight"}


@own_process
def test_parameter_that_wraps_other_tensors_is_refused():
    module = nn.Linear(8, 8, bias=False)
    module.weight = nn.Parameter(TwoTensor(torch.randn(8, 8), torch.randn(8, 8)))
    with refuses("weight"):
        Sharded(module)
    module(TwoTensor(X, X))


@own_process
def test_uninitialised_parameter_is_refused_by_torch():
    with pytest.raises(ValueError, match="uninitialized parameter"):
        Sharded(nn.LazyLinear(8))


@own_process
def test_parameter_that_is_not_a_leaf_is_refused():
    module = linear()
    with refuses("weight"):
        product = module.weight * 2
        module.register_parameter("weight", None)
        object.__setattr__(module, "weight", product)
        Sharded(module, lambda _: [("", [("weight", product)])])


@own_process
def test_gradient_before_sharding_is_refused():
    module = linear()
    squares(module).backward()
    with refuses("weight", "gradient"):
        Sharded(module)


@own_process
def test_complex_parameter():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

        def forward(self, x):
            return (x.to(torch.complex64) @ self.w).abs().sum()

    torch.manual_seed(3)
    with refuses("w"):
        Sharded(Complex())


@own_process
def test_gradient_of_a_view_held_over_steps():
    """A view taken before a step shows the values after it, as with plain parameters."""
    module, plain = two_linears(), two_linears()
    sharded = Sharded(module)
    views = [m[0].weight.detach().t() for m in (plain, module)]
    with torch.no_grad():
        plain[0].weight.mul_(3)
        sharded.leaves()["0.weight"].mul_(3)
    assert_all_bit_equal([views[1].clone()], [views[0]])

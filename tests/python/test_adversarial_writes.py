"""Writes to sharded parameters, outside of with_full_params and inside: what they do in a plain module."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adversarial_models import IDS, X, linear, squares, two_linears
from adversarial_support import Sharded, assert_all_bit_equal, assert_bit_equal, local_gradients, own_process, refuses

NEW_STATE = {"weight": torch.arange(64.0).view(8, 8) / 64, "bias": torch.arange(8.0) / 8}


def in_place(module):
    with torch.no_grad():
        module.weight.mul_(2)
        module.bias.zero_()


def through_data(module):
    module.weight.data.mul_(2)


def through_a_detached_view(module):
    module.weight.detach().view(-1)[3:9].fill_(1.0)


def load_state_dict(module):
    module.load_state_dict(NEW_STATE)


def as_output(module):
    with torch.no_grad():
        torch.mul(torch.ones(8, 8), 3, out=module.weight)


def foreach(module):
    with torch.no_grad():
        torch._foreach_mul_([module.weight, module.bias], 2.0)


def index_put(module):
    with torch.no_grad():
        module.weight[torch.tensor([0, 1])] = 0.5
        module.weight[2:4, 1] = torch.ones(2)
        module.weight.copy_(module.weight * 2)


def through_a_view_of_the_parameter(module):
    with torch.no_grad():
        module.weight.t()[1].add_(1)
        module.weight.view(4, 16).chunk(2)[1].neg_()


def in_place_activation(module):
    with torch.no_grad():
        F.relu(module.weight, inplace=True)


def one_parameter_into_another(module):
    with torch.no_grad():
        module.weight[0].copy_(module.bias)


def renormalise(module):
    with torch.no_grad():
        module.weight.renorm_(2, 0, 0.5)


def masked_fill(module):
    with torch.no_grad():
        module.weight.masked_fill_(module.weight > 0, 0.0)


def scatter(module):
    with torch.no_grad():
        module.weight.scatter_(1, torch.zeros(8, 1, dtype=torch.long), 4.0)


def random_numbers(module):
    torch.manual_seed(1)
    module.weight.data.uniform_(-1, 1)


def set_memory_of_data(module):
    module.weight.data.set_(torch.ones(8, 8))


def map_in_python(module):
    with torch.no_grad():
        module.weight.copy_(torch.stack([row * 2 for row in module.weight]))


WRITES = [
    in_place,
    through_data,
    through_a_detached_view,
    load_state_dict,
    as_output,
    foreach,
    index_put,
    through_a_view_of_the_parameter,
    in_place_activation,
    one_parameter_into_another,
    renormalise,
    masked_fill,
    scatter,
    random_numbers,
    map_in_python,
]
INITIALISATIONS = [
    nn.init.uniform_,
    nn.init.normal_,
    nn.init.zeros_,
    nn.init.ones_,
    nn.init.eye_,
    nn.init.xavier_uniform_,
    nn.init.kaiming_normal_,
    nn.init.orthogonal_,
]
STRICT = pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
BY_NAME = dict(ids=lambda function: function.__name__)


@STRICT
@pytest.mark.parametrize("write", WRITES, **BY_NAME)
@own_process
def test_write_outside_a_scope(write, strict):
    module = linear()
    plain = copy.deepcopy(module)
    sharded = Sharded(module, strict=strict)
    for _ in range(2):
        write(plain)
        write(module)
        with torch.no_grad():
            assert_bit_equal(module(X), plain(X), "output")
        assert_all_bit_equal(sharded.full_parameters(), dict(plain.named_parameters()))


@STRICT
@own_process
def test_memory_of_data_cannot_be_set(strict):
    module = linear()
    expected = squares(module)
    Sharded(module, strict=strict)
    with refuses("parameter 'weight'", "aten::set_", "changed the shape, the strides"):
        set_memory_of_data(module)
    assert_bit_equal(squares(module), expected)


# The operators that write run in the dtype of the shards. Values that were read before are those of computation.
@own_process
def test_writes_outside_a_scope_keep_full_precision():
    module = linear()
    plain = copy.deepcopy(module)
    sharded = Sharded(module, compute=torch.bfloat16)
    for write in (in_place, through_a_view_of_the_parameter, random_numbers, renormalise, load_state_dict):
        write(plain)
        write(module)
        assert_all_bit_equal(sharded.full_parameters(), dict(plain.named_parameters()))


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@STRICT
@pytest.mark.parametrize("write", WRITES, **BY_NAME)
@own_process
def test_write_inside_a_scope(write, strict, compute):
    module = linear()
    plain = copy.deepcopy(module).to(compute)
    write(plain)
    sharded = Sharded(module, strict=strict, compute=compute)
    with sharded.full_params():
        write(module)
    with torch.no_grad():
        assert_bit_equal(module(X.to(compute)), plain(X.to(compute)), "output")
    written = {name: p.to(compute) for name, p in sharded.full_parameters().items()}
    assert_all_bit_equal(written, dict(plain.named_parameters()))


@pytest.mark.parametrize("initialise", INITIALISATIONS, **BY_NAME)
@own_process
def test_initialisation(initialise):
    module = linear()
    plain = copy.deepcopy(module)
    torch.manual_seed(1)
    initialise(plain.weight)
    sharded = Sharded(module)
    torch.manual_seed(1)
    initialise(module.weight)
    assert_all_bit_equal(sharded.full_parameters(), dict(plain.named_parameters()))
    module.weight.data.zero_()
    with sharded.full_params():
        torch.manual_seed(1)
        initialise(module.weight)
    assert_all_bit_equal(sharded.full_parameters(), dict(plain.named_parameters()))


@own_process
def test_reset_parameters():
    module = two_linears()
    plain = copy.deepcopy(module)
    sharded = Sharded(module, compute=torch.bfloat16)
    for model in (plain, module):
        torch.manual_seed(3)
        for layer in (model[0], model[2]):
            layer.reset_parameters()
    assert_all_bit_equal(sharded.full_parameters(), dict(plain.named_parameters()))


@STRICT
@own_process
def test_writes_that_are_not_to_be_kept_are_lost(strict):
    module = linear()
    expected = copy.deepcopy(module)
    sharded = Sharded(module, strict=strict)
    with sharded.full_params(writeback=False):
        in_place(module)
    assert_all_bit_equal(sharded.full_parameters(), dict(expected.named_parameters()))
    assert_bit_equal(squares(module), squares(expected))


@own_process
def test_write_through_numpy_inside_a_scope():
    module = linear()
    sharded = Sharded(module)
    with sharded.full_params():
        module.weight.detach().numpy()[2, 3] = 42
    assert sharded.full_parameters()["weight"][2, 3] == 42
    assert squares(module) > 42


@own_process
def test_write_to_one_parameter_leaves_full_precision_of_the_others():
    module = linear()
    weight = module.weight.detach().clone()
    sharded = Sharded(module, compute=torch.bfloat16)
    with sharded.full_params(), torch.no_grad():
        module.bias.zero_()
    full = sharded.full_parameters()
    assert_bit_equal(full["weight"], weight)
    assert full["bias"].abs().max() == 0


@own_process
def test_saved_values_are_stale_after_a_scope():
    module = two_linears()
    sharded = Sharded(module)
    loss = squares(module)
    with sharded.full_params(), torch.no_grad():
        module[2].weight.mul_(2)
    with pytest.raises(RuntimeError, match="written between forward and backward|modified by an inplace operation"):
        loss.backward()


@own_process
def test_training_goes_on_after_a_scope():
    module = two_linears()
    plain = copy.deepcopy(module)
    in_place(plain[2])
    squares(plain).backward()
    sharded = Sharded(module)
    squares(module)
    with sharded.full_params():
        in_place(module[2])
    squares(module).backward()
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain))


@own_process
def test_embedding_that_renormalises_in_forward():
    module = nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Linear(8, 4))
    plain = copy.deepcopy(module)
    sharded = Sharded(module)
    assert_bit_equal(module(IDS), plain(IDS))
    assert_all_bit_equal(sharded.full_parameters(), dict(plain.named_parameters()))


@own_process
def test_in_place_under_autograd_raises_as_with_plain_parameters():
    module = linear()
    Sharded(module)
    with pytest.raises(RuntimeError):
        module.weight.view(-1).mul_(2)
    with pytest.raises(RuntimeError):
        module.weight.mul_(2)


@own_process
def test_deleted_memory_is_refused():
    module = linear()
    Sharded(module)
    with pytest.raises(RuntimeError):
        module.weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError), torch.no_grad():
        module.weight.resize_(100)
    with pytest.raises(RuntimeError), torch.no_grad():
        module.weight.data.resize_(100)
    assert_bit_equal(squares(module), squares(linear()))

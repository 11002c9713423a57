"""Code that reads a parameter's memory past the dispatcher, and copies and files of parameters."""

import copy
import io
import pickle

import numpy
import pytest
import safetensors.torch
import torch
from torch import nn

from adversarial_models import linear, squares, two_linears
from adversarial_support import Sharded, assert_all_bit_equal, assert_bit_equal, own_process, refuses


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def safetensors_of(parameter):
    return safetensors.torch.load(safetensors.torch.save({"w": parameter.detach()}))["w"]


def bytes_of(parameter):
    return torch.frombuffer(bytearray(bytes(parameter.detach().untyped_storage())), dtype=torch.float32).view(8, 8)


def array_of(parameter):
    return torch.from_numpy(numpy.array(parameter.detach()))


# Each returns the parameter's values as a tensor.
RAW_READS = {
    "dlpack": lambda p: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(p.detach())).clone(),
    "array_from_dlpack": lambda p: torch.from_numpy(numpy.from_dlpack(p.detach()).copy()),
    "storage_bytes": bytes_of,
    "save_parameter": lambda p: saved_and_loaded(p).detach(),
    "save_view": lambda p: saved_and_loaded(p.detach().t()).t(),
    "pickle": lambda p: pickle.loads(pickle.dumps(p)).detach(),
    "safetensors": safetensors_of,
    "typed_storage": lambda p: torch.tensor(list(p.detach().storage())).view(8, 8),
}
# Through operators: right at any time. NumPy gets a copy of a released parameter, as printing does.
READS = {
    "numpy": lambda p: torch.from_numpy(p.detach().numpy()),
    "array": array_of,
    "item": lambda p: torch.tensor([[p[i, j].item() for j in range(8)] for i in range(8)]),
    "float": lambda p: torch.tensor([[float(x) for x in row] for row in p]),
    "clone": lambda p: p.clone(),
    "cpu": lambda p: p.cpu() + 0,
    "double": lambda p: p.double().float(),
    "tolist": lambda p: torch.tensor(p.tolist()),
    "numpy_force": lambda p: torch.from_numpy(p.numpy(force=True)),
    "as_tensor": lambda p: torch.as_tensor(p.detach(), dtype=torch.float64).float(),
    "deepcopy": copy.deepcopy,
    "contiguous": lambda p: p.t().contiguous().t(),
    "to_dense": lambda p: p.to_sparse().to_dense(),
    "unique": lambda p: p.unique(return_inverse=True)[0][p.unique(return_inverse=True)[1]],
    "nested": lambda p: torch.nested.nested_tensor([p.detach(), p.detach()]).unbind()[1],
    "mkldnn": lambda p: p.detach().to_mkldnn().to_dense(),
}


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@pytest.mark.parametrize("read", RAW_READS)
@own_process
def test_raw_read_of_a_released_parameter_is_refused(read, strict):
    module = linear()
    Sharded(module, strict=strict)
    with refuses("parameter 'weight'", "pin"):
        RAW_READS[read](module.weight)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@pytest.mark.parametrize("read", RAW_READS)
@own_process
def test_raw_read_of_a_pinned_parameter(read, strict):
    module = linear()
    sharded = Sharded(module, strict=strict)
    with sharded.pin(module.weight):
        assert_bit_equal(RAW_READS[read](module.weight), linear().weight)
    with refuses("parameter 'weight'"):
        sharded.engine.reshard()
        RAW_READS[read](module.weight)


@own_process
def test_numpy_shares_the_memory_of_a_pinned_parameter():
    """Of a released one it is a copy, as with force=True: what is written to it is not written to the parameter."""
    module = linear()
    sharded = Sharded(module)
    copied = module.weight.detach().numpy()
    copied[:] = 7
    with sharded.full_params():
        assert_bit_equal(torch.from_numpy(module.weight.detach().numpy().copy()), linear().weight)
        module.weight.detach().numpy()[:] = 3
    assert_all_bit_equal(sharded.full_parameters(), {"weight": torch.full((8, 8), 3.0), "bias": linear().bias.detach()})


@pytest.mark.parametrize("read", READS)
@own_process
def test_read_through_operators(read):
    module = linear()
    Sharded(module)
    assert_bit_equal(READS[read](module.weight), linear().weight)


@own_process
def test_address_of_a_released_parameter_is_refused():
    module = linear()
    sharded = Sharded(module)
    with refuses("parameter 'weight'"):
        module.weight.data_ptr()
    with refuses("parameter 'bias'"):
        module.bias.detach().view(2, 4).data_ptr()
    with sharded.pin(module.weight):
        assert module.weight.data_ptr() != 0


@own_process
def test_shared_memory_is_refused():
    module = linear()
    Sharded(module)
    with pytest.raises(RuntimeError):
        module.weight.share_memory_()
    assert_bit_equal(squares(module), squares(linear()))


@own_process
def test_printing():
    module = linear()
    expected = [str(module.weight), repr(module.bias), f"{module.weight[0, 0]:.3f}"]
    Sharded(module)
    assert [str(module.weight), repr(module.bias), f"{module.weight[0, 0]:.3f}"] == expected
    assert "Linear" in repr(module)


@own_process
def test_printing_a_gradient_of_the_module_is_refused():
    module = linear()
    Sharded(module)
    squares(module).backward()
    assert module.weight.grad.shape == (8, 8)
    with refuses("gradient", "weight"):
        str(module.weight.grad)
    with refuses("gradient", "weight"):
        module.weight.grad.numpy()
    with refuses("gradient", "weight"):
        module.weight.grad.norm()


@own_process
def test_copy_of_a_model_is_an_ordinary_model():
    module = two_linears()
    Sharded(module)
    duplicate = copy.deepcopy(module)
    assert_all_bit_equal(dict(duplicate.named_parameters()), dict(two_linears().named_parameters()))
    squares(duplicate).backward()
    with torch.no_grad():
        for parameter in duplicate.parameters():
            parameter.add_(parameter.grad)
    assert_bit_equal(squares(module), squares(two_linears()))


@own_process
def test_copy_of_a_model_after_backward():
    module = two_linears()
    Sharded(module)
    squares(module).backward()
    duplicate = copy.deepcopy(module)
    assert all(p.grad is None for p in duplicate.parameters())
    assert_bit_equal(squares(duplicate), squares(two_linears()))


@pytest.mark.parametrize("duplicate", [copy.copy, nn.Parameter], ids=["copy", "Parameter"])
@own_process
def test_second_parameter_on_the_same_memory_writes_to_it(duplicate):
    module = linear()
    plain = linear()
    sharded = Sharded(module)
    for model in (plain, module):
        other = duplicate(model.weight)
        assert_bit_equal(other.detach().clone(), linear().weight)
        other.pow(2).sum().backward()
        torch.optim.SGD([other], 0.1).step()
    assert_bit_equal(sharded.full_parameters()["weight"], plain.weight)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
@own_process
def test_state_dict(strict):
    module = two_linears()
    sharded = Sharded(module, strict=strict)
    with refuses("pin"):
        saved_and_loaded(module.state_dict())
    with sharded.pin():
        state = saved_and_loaded(module.state_dict())
    assert_all_bit_equal(state, two_linears().state_dict())
    assert_all_bit_equal({name: p.clone() for name, p in module.state_dict().items()}, two_linears().state_dict())


@own_process
def test_whole_model_in_a_file():
    module = two_linears()
    sharded = Sharded(module)
    with refuses("pin"):
        saved_and_loaded(module)
    with sharded.pin():
        loaded = saved_and_loaded(module)
    assert_bit_equal(squares(loaded), squares(two_linears()))


@own_process
def test_safetensors_file(tmp_path):
    module = two_linears()
    sharded = Sharded(module)
    with refuses("parameter '"):
        safetensors.torch.save_model(module, tmp_path / "refused.safetensors")
    with sharded.pin():
        safetensors.torch.save_model(module, tmp_path / "model.safetensors")
    assert_all_bit_equal(safetensors.torch.load_file(tmp_path / "model.safetensors"), two_linears().state_dict())


LEGACY = {
    "type": lambda p: p.type(),
    "type_of_views": lambda p: p.t().type(),
    "conversion_by_type": lambda p: p.type("torch.DoubleTensor").dtype,
    "new_zeros": lambda p: p.new_zeros(3).tolist(),
    "type_as": lambda p: torch.ones(2).type_as(p).dtype,
    "empty_like": lambda p: torch.empty_like(p).shape,
    "zeros_like": lambda p: torch.zeros_like(p).tolist(),
    "rand_like": lambda p: torch.rand_like(p).shape,
    "layout": lambda p: (p.layout, p.is_sparse, p.is_quantized, p.is_mkldnn, p.is_contiguous(), p.stride()),
    "result_type": lambda p: torch.result_type(p, 1),
    "can_cast": lambda p: torch.can_cast(p.dtype, torch.float64),
    "dim_order": lambda p: (p.dim(), p.size(), p.numel(), p.element_size(), p.storage_offset(), p.nbytes),
    "storage_size": lambda p: p.untyped_storage().nbytes(),
    "iterate": lambda p: len(list(p)),
    "contains": lambda p: 0.0 in p,
    "requires_grad": lambda p: (p.requires_grad, p.is_leaf, p.grad_fn, p.data.requires_grad),
}


@pytest.mark.parametrize("query", LEGACY)
@own_process
def test_legacy_query(query):
    module = linear()
    Sharded(module)
    assert LEGACY[query](module.weight) == LEGACY[query](linear().weight)


@pytest.mark.parametrize(
    "legacy",
    [lambda p: p.new(3), lambda p: p.new_tensor([1.0]), nn.init.trunc_normal_],
    ids=["new", "new_tensor", "trunc_normal_"],
)
@own_process
def test_legacy_constructors_are_refused_by_torch(legacy):
    """They derive a tensor type from dispatch keys, of which they know only torch's own."""
    module = linear()
    sharded = Sharded(module)
    with sharded.full_params(), pytest.raises(RuntimeError, match="DeferredInit doesn't correspond to a device"):
        legacy(module.weight)

"""What takes the place of a sharded parameter: assignment, deletion, tied weights, functional_call, parametrizations,
copies and state dicts."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

from package_ranks import run_ranks
from parameter_views import assert_values, drift


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 5)), nn.Linear(5, 5))


def shard(net):
    from fsdp_cpp import EngineOptions, fully_shard

    options = EngineOptions(backend="gloo")
    fully_shard(net[0], engine_options=options)
    return fully_shard(net, engine_options=options)


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 5)


def raises(error, *words):
    return pytest.raises(error, match="(?s)" + ".*".join(words))


def whole_values(net):
    return {
        name: p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach().clone()
        for name, p in net.named_parameters()
    }


def assert_in_step(net, sharded=True):
    """The views of all parameters agree, and all are sharded."""
    for holder in net.modules():
        for name, parameter in holder.named_parameters(recurse=False):
            if sharded or hasattr(parameter, "whole"):
                assert not drift(holder, name, parameter.whole, parameter), name
                assert_values(parameter.whole, parameter, parameter.full_tensor().detach())


def assignments(rank, size):
    from torch.distributed.tensor import DTensor, distribute_tensor

    net = shard(make_net())
    linear, sharded, whole = net[0], next(net.parameters()), net[0].weight
    before = whole.detach().clone()
    for replace in (
        lambda: setattr(linear, "weight", nn.Parameter(torch.zeros(5, 5))),
        lambda: linear.register_parameter("weight", nn.Parameter(torch.zeros(5, 5))),
        lambda: linear._parameters.update(weight=nn.Parameter(torch.zeros(5, 5))),
        lambda: linear._parameters.__setitem__("weight", torch.zeros(5, 5)),
    ):
        with raises(NotImplementedError, "'0.weight'", "copy"):
            replace()
    with raises(TypeError, "cannot assign"):
        linear.weight = torch.zeros(5, 5)
    with raises(ValueError, "'0.weight'", "shape"):
        linear.weight = nn.Parameter(distribute_tensor(torch.zeros(3, 5), sharded.device_mesh, sharded.placements))
    with raises(NotImplementedError, "'0.weight'", "float64"):
        linear.weight = nn.Parameter(distribute_tensor(before.double(), sharded.device_mesh, sharded.placements))
    assert_in_step(net)
    assert_values(whole, sharded, before)
    linear.weight = nn.Parameter(distribute_tensor(before + 1, sharded.device_mesh, sharded.placements))
    assert_values(whole, sharded, before + 1)
    linear.weight = nn.Parameter(sharded.detach())  # the same memory
    linear.weight = sharded
    linear.weight = whole
    assert_in_step(net)
    assert next(net.parameters()) is sharded and net[0].weight is whole
    linear.bias = None
    assert linear.bias is None and "0.bias" not in dict(net.named_parameters())
    plain = torch.nn.functional.linear(batch(), before + 1)
    torch.testing.assert_close(linear(batch()), plain)
    net[2].bias = None
    del net[2].bias
    assert not hasattr(net[2], "bias") and "bias" not in net[2]._parameters
    del linear.weight
    with pytest.raises(AttributeError, match="weight"):
        _ = linear.weight
    assert isinstance(sharded, DTensor)


def tied_weights(rank, size):
    """After sharding, within a tree and into a module outside of it."""
    net, plain = shard(make_net()), make_net()
    other, plain_other = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
    for model, outside in ((net, other), (plain, plain_other)):
        model[2].weight = model[0].weight
        outside.weight = model[0].weight
        model.register_module("outside", outside)
        outside(model(batch())).square().sum().backward()
    assert other.weight is net[2].weight is net[0].weight
    assert dict(other.named_parameters())["weight"] is next(net.parameters())
    assert len(list(net.parameters())) == len(list(plain.parameters())) == 7
    kept = net[1][0].weight
    net[1][0].weight = None  # its sharded parameter is in no module for a while
    net[1][0].weight = kept
    names = [name for name, _ in net.named_parameters(remove_duplicate=False)]
    assert names == [name for name, _ in plain.named_parameters(remove_duplicate=False)]
    for (name, own), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
        if name == "2.weight":
            assert own.grad is None and expected.grad is None
            continue
        torch.testing.assert_close(own.grad.full_tensor(), expected.grad, msg=name)
    assert_in_step(net)
    listed = nn.ParameterList(net[1].parameters())
    named = nn.ParameterDict({"scale": net[1][0].weight})
    assert list(listed.parameters()) == list(net[1].parameters()) and listed[0] is net[1][0].weight
    assert named["scale"] is net[1][0].weight and next(named.parameters()) is next(net[1].parameters())


def new_parameters(rank, size):
    net = shard(make_net())
    with pytest.warns(UserWarning, match="'scale' was registered .* after fully_shard"):
        net[1][0].scale = nn.Parameter(torch.ones(5))
    with pytest.warns(UserWarning, match="'0' was registered .* after fully_shard"):
        net[1][0] = nn.LayerNorm(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net[1][0] = nn.Identity()
        net[1][0] = net[2]
        net[1].frozen = nn.Parameter(torch.ones(5), requires_grad=False)


def functional_calls(rank, size):
    from torch.distributed.tensor import DTensor

    net, plain = shard(make_net()), make_net()
    start = whole_values(net)
    torch.manual_seed(2)
    values = {name: torch.randn(p.shape, requires_grad=True) for name, p in plain.named_parameters()}
    own_values = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
    for strict in (False, True):
        expected = torch.func.functional_call(plain, values, (batch(),), strict=strict)
        own = torch.func.functional_call(net, own_values, (batch(),), strict=strict)
        torch.testing.assert_close(own, expected)
    own.sum().backward()
    expected.sum().backward()
    for name, value in values.items():
        torch.testing.assert_close(own_values[name].grad, value.grad)
    assert all(p.grad is None for p in net.parameters())
    assert_in_step(net)
    # Other DTensors stand for their whole tensors, for the call only.
    doubled = {name: p.detach() * 2 for name, p in net.named_parameters()}
    assert isinstance(doubled["0.weight"], DTensor)
    expected = torch.func.functional_call(plain, {n: p * 2 for n, p in plain.named_parameters()}, (batch(),))
    torch.testing.assert_close(torch.func.functional_call(net, doubled, (batch(),)), expected)
    for name, value in whole_values(net).items():
        assert torch.equal(value, start[name]), name
    # Its own parameters, by either name, get their gradients; a part of them may be replaced.
    for given in (dict(net.named_parameters()), {"0.weight": net[0].weight}, {}):
        torch.func.functional_call(net, given, (batch(),)).sum().backward()
        torch.func.functional_call(plain, {}, (batch(),)).sum().backward()
    for (name, parameter), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad, msg=name)
    with pytest.raises(RuntimeError, match="nowhere"):
        torch.func.functional_call(net, {"nowhere": torch.ones(1)}, (batch(),), strict=True)
    net[2].weight = net[0].weight
    tied = {"0.weight": torch.zeros(5, 5)}
    zeros = torch.func.functional_call(net, tied, (batch(),), tie_weights=True)
    assert torch.equal(zeros, net[2].bias.detach().expand(4, 5))
    assert not torch.equal(torch.func.functional_call(net, tied, (batch(),), tie_weights=False), zeros)
    assert_in_step(net)


def parametrizations(rank, size):
    """Before sharding and after it."""
    from torch.nn.utils import parametrizations, parametrize

    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    def build():
        net = make_net()
        parametrizations.weight_norm(net[0])
        parametrize.register_parametrization(net[2], "weight", Doubled())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.nn.utils.weight_norm(net[1][1])
        return net

    net, plain = shard(build()), build()
    for model in (net, plain):
        model(batch()).sum().backward()
    for (name, own), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad.full_tensor(), expected.grad, msg=name)
    net, plain = shard(make_net()), make_net()
    for model in (net, plain):
        parametrize.register_parametrization(model[2], "weight", Doubled())
        model(batch()).sum().backward()
    for (name, own), (other, expected) in zip(net.named_parameters(), plain.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(own.grad.full_tensor(), expected.grad, msg=name)
    assert_in_step(net)


@pytest.mark.parametrize("check", [assignments, tied_weights, new_parameters, functional_calls, parametrizations])
def test_replacements(check):
    run_ranks(2, check)


def copies(rank, size):
    from torch.distributed.tensor import DTensor

    net = shard(make_net())
    net(batch()).sum().backward()
    sharded, whole = next(net.parameters()), net[0].weight
    twin = copy.deepcopy(sharded)
    assert type(twin) is DTensor and isinstance(twin, nn.Parameter) and twin.requires_grad
    assert torch.equal(twin.grad.full_tensor(), sharded.grad.full_tensor())
    with torch.no_grad():
        twin.zero_()
        twin.grad.zero_()
    assert whole.detach().any() and sharded.grad.full_tensor().any()
    whole_twin = copy.deepcopy(whole)
    assert type(whole_twin) is nn.Parameter and torch.equal(whole_twin, whole)
    assert copy.deepcopy([sharded, sharded])[0] is not sharded
    for module in (net, net[0], net[1], net[1][0]):
        with raises(AssertionError, "does not support deepcopy"):
            copy.deepcopy(module)
        with raises(Exception, "pickle"):
            pickle.dumps(module)
        with raises(Exception, "pickle"):
            torch.save(module, io.BytesIO())
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.step()
    other = copy.deepcopy(optimizer)
    own = [p for group in other.param_groups for p in group["params"]]
    assert all(type(p) is DTensor for p in own) and not set(map(id, own)) & set(map(id, net.parameters()))
    values = whole_values(net)
    other.step()
    for name, value in whole_values(net).items():
        assert torch.equal(value, values[name]), name
    assert_in_step(net)


def saved_state_dicts(rank, size):
    from torch.distributed.tensor import DTensor

    net = shard(make_net())
    values = whole_values(net)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    assert file.tell() < 30_000
    safe = [DTensor, *_dtensor_globals()]
    for arguments in ({"weights_only": False}, {"weights_only": True}):
        file.seek(0)
        with torch.serialization.safe_globals(safe):
            loaded = torch.load(file, **arguments)
        for name, value in loaded.items():
            assert type(value) is DTensor and torch.equal(value.full_tensor(), values[name]), name
    single = pickle.loads(pickle.dumps(next(net.parameters())))
    assert type(single) is DTensor and torch.equal(single.full_tensor(), values["0.weight"])


def _dtensor_globals():
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta

    return [DeviceMesh, Shard, DTensorSpec, TensorMeta, ShardOrderEntry]


def loaded_state_dicts(rank, size):
    net, other = shard(make_net()), make_net()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    parameters = list(net.parameters())
    plain = {name: value.clone() for name, value in other.state_dict().items()}
    distributed = {name: p.detach().clone() for name, p in shard(copy.deepcopy(other)).named_parameters()}
    for state, arguments in ((plain, {}), (distributed, {}), (distributed, {"assign": True})):
        with torch.no_grad():
            for parameter in parameters:
                parameter.zero_()
        result = net.load_state_dict(state, **arguments)
        assert not result.missing_keys and not result.unexpected_keys
        assert all(new is old for new, old in zip(net.parameters(), parameters, strict=True))
        for name, value in whole_values(net).items():
            assert torch.equal(value, plain[name]), name
        assert_in_step(net)
    with raises(RuntimeError, "'0.weight'", "assign=True"):
        net.load_state_dict(plain, assign=True)
    with raises(RuntimeError, "0.weight", "shape"):
        net.load_state_dict({**plain, "0.weight": torch.zeros(2, 5)})
    with raises(RuntimeError, "Missing key", "0.weight"):
        net.load_state_dict({name: value for name, value in plain.items() if name != "0.weight"})
    kept = net.state_dict(keep_vars=True)
    assert all(kept[name] is parameter for name, parameter in net.named_parameters())
    held = net.state_dict()
    assert all(not value.requires_grad and value.grad is None for value in held.values())
    with torch.no_grad():
        held["0.weight"].fill_(7)  # refers to the parameter's memory
    assert_values(net[0].weight, parameters[0], torch.full((5, 5), 7.0))


def swapped(rank, size):
    net = shard(make_net())
    sharded, whole = next(net.parameters()), net[0].weight
    for one in (sharded, whole):
        with raises(RuntimeError, "Cannot swap"):
            torch.utils.swap_tensors(one, nn.Parameter(torch.zeros(5, 5)))
    values = whole_values(net)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with raises(RuntimeError, "'0.weight'", "set_swap_module_params_on_conversion"):
            net.load_state_dict({name: value + 1 for name, value in values.items()})
        net.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        net.float()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert_in_step(net)
    assert_values(whole, sharded, values["0.weight"])


@pytest.mark.parametrize("check", [copies, saved_state_dicts, loaded_state_dicts, swapped])
def test_copies_and_state_dicts(check):
    run_ranks(2, check)

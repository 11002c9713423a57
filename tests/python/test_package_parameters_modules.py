"""Each attribute of nn.Module that reads, converts, copies or replaces parameters, on sharded modules, on plain modules
below them and on their parents."""

import gc
import weakref

import pytest
import torch
from torch import nn

from package_ranks import run_ranks
from parameter_views import assert_values, drift

# How each attribute of nn.Module is judged: by the tests named, or because it does not touch parameters.
JUDGED = {
    "test_conversions": """
        _apply bfloat16 cpu cuda double float half ipu mtia share_memory to to_empty type xpu
    """,
    "test_reading_and_training": """
        __call__ _call_impl _named_members _wrapped_call_impl __dir__ apply buffers children eval extra_repr
        forward get_buffer get_extra_state get_parameter get_submodule modules named_buffers named_children
        named_modules named_parameters parameters requires_grad_ set_extra_state set_submodule train zero_grad
        __repr__ _get_name __setstate__ compile _compiled_call_impl
    """,
    "test_package_parameters_assignment.py": """
        __delattr__ __getattr__ __setattr__ _load_from_state_dict _save_to_state_dict add_module load_state_dict
        register_module register_parameter state_dict
    """,
    "test_state_dict_hooks": """
        _register_load_state_dict_pre_hook _register_state_dict_hook register_load_state_dict_post_hook
        register_load_state_dict_pre_hook register_state_dict_post_hook register_state_dict_pre_hook
    """,
    "no parameters": """
        T_destination __annotations__ __class__ __dict__ __doc__ __eq__ __format__ __ge__ __getattribute__ __getstate__
        __gt__ __hash__ __init__ __init_subclass__ __le__ __lt__ __module__ __ne__ __new__ __reduce__ __reduce_ex__
        __sizeof__ __str__ __subclasshook__ __weakref__ _get_backward_hooks _get_backward_pre_hooks
        _maybe_warn_non_full_backward_hook _register_state_dict_hook _replicate_for_data_parallel
        _slow_forward _version call_super_init dump_patches register_backward_hook register_buffer
        register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    """,
}


def attributes_of_module():
    """The names of nn.Module, without those that other libraries (transformers) add when they are imported."""
    owner = {name: getattr(getattr(nn.Module, name), "__module__", None) or "torch" for name in dir(nn.Module)}
    return {name for name, module in owner.items() if module.partition(".")[0] in ("builtins", "torch", "typing")}


def test_every_attribute_of_module_is_judged():
    names = {name for judged in JUDGED.values() for name in judged.split()}
    assert attributes_of_module() - names == set()
    assert names - attributes_of_module() == set()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.rnn = nn.LSTM(6, 6, batch_first=True)
        self.norm = nn.BatchNorm1d(5)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(6))})
        self.extra = 0

    def forward(self, x):
        x = self.attention(x, x, x)[0]
        x = self.norm(self.rnn(x)[0])
        return x * self.scales[0] * self.scales[1] + self.named["shift"]

    def get_extra_state(self):
        return {"extra": self.extra}

    def set_extra_state(self, state):
        self.extra = state["extra"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 6)
        self.block = Block()
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


def shard(net):
    from fsdp_cpp import EngineOptions, fully_shard

    options = EngineOptions(backend="gloo")
    fully_shard(net.block, engine_options=options)
    return fully_shard(net, engine_options=options)


def batch():
    torch.manual_seed(1)
    return torch.randint(0, 11, (3, 5))


def raises(error, *words):
    return pytest.raises(error, match="(?s)" + ".*".join(words))


def assert_in_step(net, values=None):
    for prefix, holder in net.named_modules():
        for name, sharded in holder.named_parameters(recurse=False):
            where = f"{prefix}.{name}"
            assert not drift(holder, name, sharded.whole, sharded), where
            full = sharded.full_tensor().detach() if values is None else values[where.removeprefix("net.")]
            assert_values(sharded.whole, sharded, full)


def whole_values(net):
    return {name: p.full_tensor().detach() for name, p in net.named_parameters(remove_duplicate=False)}


def conversions(rank, size):
    net = shard(Net())
    parent = nn.ModuleDict({"net": net})
    parameters, values = list(net.parameters()), whole_values(net)
    net(batch()).sum().backward()
    gradient = parameters[0].grad.full_tensor()
    for module in (net, net.block, net.block.attention, net.block.rnn, net.block.scales, net.head, parent):
        for convert in (
            lambda m: m.to(torch.float32),
            lambda m: m.to("cpu"),
            lambda m: m.to(torch.zeros(1)),
            lambda m: m.to(device="cpu", dtype=torch.float32, non_blocking=True),
            lambda m: m.float(),
            lambda m: m.cpu(),
            lambda m: m.type(torch.float32),
            lambda m: m._apply(lambda tensor: tensor.clone()),
            lambda m: m.to_empty(device="cpu", recurse=False),
        ):
            if module is not parent:
                assert convert(module) is module
        named = "embedding.weight" if module in (net, net.head, parent) else "block"
        for convert in (
            lambda m: m.half(),
            lambda m: m.bfloat16(),
            lambda m: m.double(),
            lambda m: m.to(torch.bfloat16),
            lambda m: m.type(torch.float64),
            lambda m: m.to("meta"),
            lambda m: m.share_memory(),
            lambda m: m.to_empty(device="meta"),
        ):
            with raises(NotImplementedError, "'" + named, "'"):
                convert(module)
        with torch.no_grad():  # to_empty leaves no defined values
            for name, parameter in net.named_parameters():
                parameter.copy_(values[name])
        assert_in_step(net, values)
    assert all(new is old for new, old in zip(net.parameters(), parameters, strict=True))
    rnn = net.block.rnn
    for flat, name in zip(rnn._flat_weights, rnn._flat_weights_names, strict=True):
        assert flat is getattr(rnn, name), name
    parameters[0].grad = gradient.clone()
    net.head._apply(lambda tensor: tensor * 2)
    values["embedding.weight"] = values["head.weight"] = values["embedding.weight"] * 2
    assert_in_step(net, values)
    assert torch.equal(parameters[0].grad.full_tensor(), gradient * 2)
    for cuda in (lambda: net.cuda(), lambda: net.xpu()):
        if not torch.cuda.is_available():
            with pytest.raises((AssertionError, RuntimeError)):
                cuda()
    assert_in_step(net, values)


def test_conversions():
    run_ranks(2, conversions)


def reading_and_training(rank, size):
    net, plain = shard(Net()), Net()
    for one, other in ((net, plain), (net.block, plain.block), (net.block.rnn, plain.block.rnn)):
        for duplicates in (True, False):
            names = [name for name, _ in one.named_parameters(remove_duplicate=not duplicates)]
            assert names == [name for name, _ in other.named_parameters(remove_duplicate=not duplicates)]
        assert list(one.state_dict()) == list(other.state_dict())
        assert set(dir(other)) <= set(dir(one))
        assert one.extra_repr() == other.extra_repr()
    assert repr(net).replace("FSDP", "") == repr(plain)
    assert net.get_parameter("head.weight") is net.head.weight is net.embedding.weight
    assert net.get_submodule("block.rnn") is net.block.rnn
    repeated = repr(next(net.parameters()))
    assert "ShardedParameter('embedding.weight', shape=(11, 6), local_shape=(" in repeated
    for step in range(2):
        for model in (net, plain):
            model.train(step == 0)
            assert model.block.training == (step == 0)
            model(batch()).square().sum().backward()
        for (name, own), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad.full_tensor(), expected.grad, rtol=1e-4, atol=1e-4, msg=name)
    net.zero_grad(set_to_none=False)
    assert all(not p.grad.full_tensor().any() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    seen = []
    net.apply(seen.append)
    assert sorted(map(id, seen)) == sorted(map(id, net.modules()))
    net.eval()
    state = net.block.rnn.__dict__.copy()
    net.block.rnn.__setstate__(state)  # RNNs rebuild their lists of weights
    torch.testing.assert_close(net(batch()), plain(batch()))
    assert_in_step(net)
    net.requires_grad_(False)
    assert all(not p.requires_grad and not p.whole.requires_grad for p in net.parameters())
    net.requires_grad_(True)
    assert_in_step(net)
    net.block.rnn.weight_hh_l0.requires_grad_(False)  # the whole parameter's flag is the sharded one's
    frozen = net.block.rnn.weight_hh_l0
    assert not dict(net.named_parameters())["block.rnn.weight_hh_l0"].requires_grad
    frozen.requires_grad = True
    dict(net.named_parameters())["block.rnn.weight_hh_l0"].requires_grad = True
    assert_in_step(net)


def freed(rank, size):
    """Nothing but the caller keeps a model alive, and no collector of cycles is needed to free it."""
    gc.collect()
    gc.disable()
    net = shard(Net())
    net(batch()).sum().backward()
    handle = next(net.parameters()).register_post_accumulate_grad_hook(lambda parameter: None)
    alive = [weakref.ref(module) for module in net.modules()]
    alive += [weakref.ref(p) for p in net.parameters()]
    del net, handle
    assert not [reference() for reference in alive if reference() is not None]
    gc.enable()


def test_reading_and_training():
    run_ranks(2, reading_and_training)


def test_a_model_is_freed_with_its_last_reference():
    run_ranks(2, freed)


def state_dict_hooks(rank, size):
    from torch.distributed.tensor import DTensor

    net = shard(Net())
    calls = []
    net.block.register_state_dict_pre_hook(lambda *arguments: calls.append("before saving"))
    net.block.register_state_dict_post_hook(lambda module, state, *_: calls.append(_classes_of(state)))
    net.block.register_load_state_dict_pre_hook(lambda module, state, *_: calls.append(_classes_of(state)))
    net.block.register_load_state_dict_post_hook(lambda *arguments: calls.append("after loading"))
    net.block.extra = 5
    state = net.state_dict()
    values = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    net.block.extra = 0
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    values["block._extra_state"] = state["block._extra_state"]
    net.load_state_dict(values)
    assert net.block.extra == 5
    assert calls == ["before saving", True, True, "after loading"]
    for name, parameter in net.named_parameters():
        assert isinstance(parameter, DTensor) and torch.equal(parameter.full_tensor(), values[name].full_tensor()), name
    assert_in_step(net)


def _classes_of(state):
    from torch.distributed.tensor import DTensor

    return isinstance(state["block.attention.in_proj_weight"], DTensor)


def test_state_dict_hooks():
    run_ranks(2, state_dict_hooks)

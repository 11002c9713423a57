"""Function transforms, compilers, tracers and modes around a sharded module: bit-equal, or refused by the engine."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from adversarial_models import X, squares, transformer, transformer_loss, two_linears
from adversarial_support import (
    Sharded,
    assert_all_bit_equal,
    assert_bit_equal,
    assert_nothing_left_behind,
    assert_trains_like_plain,
    local_gradients,
    own_process,
    right_or_refused,
)

STRICT = pytest.mark.parametrize("strict", [True, False], ids=["strict", "relaxed"])
BY_NAME = dict(ids=lambda function: function.__name__)


# ---------------------------------------------------------------- torch.func


def functional_loss(model):
    return lambda parameters: functional_call(model, parameters, (X,)).pow(2).sum()


def gradient(model):
    return list(grad(functional_loss(model))(dict(model.named_parameters())).values())


def vector_jacobian(model):
    value, pullback = vjp(functional_loss(model), dict(model.named_parameters()))
    return [value, *pullback(torch.tensor(2.0))[0].values()]


def jacobian_of_inputs(model):
    return [jacrev(model)(X[0]), jacfwd(model)(X[0])]


def jacobian_of_parameters(model):
    return list(jacrev(functional_loss(model))(dict(model.named_parameters())).values())


def hessian_of_inputs(model):
    return [hessian(lambda x: model(x).pow(2).sum())(X[0])]


def directional(model):
    return list(jvp(model, (X[0],), (X[1],)))


def linearised(model):
    value, function = linearize(model, X[0])
    return [value, function(X[1])]


def over_inputs(model):
    return [vmap(model)(X)]


def over_rows_of_a_parameter(model):
    return [vmap(lambda row: (X[0] * row).sum())(model[0].weight)]


def over_stacked_parameters(model):
    stacked = torch.stack([model[0].weight, model[0].weight * 2])
    return [vmap(lambda w: (X @ w).sum())(stacked)]


def per_sample_gradients(model):
    def loss(parameters, x):
        return functional_call(model, parameters, (x,)).pow(2).sum()

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return list(vmap(grad(loss), (None, 0))(parameters, X).values())


def ensemble(model):
    parameters, buffers = stack_module_state([model, model])
    return [vmap(lambda p, b: functional_call(model, (p, b), (X,)))(parameters, buffers)]


def forward_mode_on_a_parameter(model):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(model[0].weight, torch.ones(8, 8))
        return list(forward_ad.unpack_dual((X @ dual).pow(2).sum()))


def jacobian_of_autograd(model):
    return list(torch.autograd.functional.jacobian(lambda w: X @ w, model[0].weight))


TRANSFORMS = [
    gradient,
    vector_jacobian,
    jacobian_of_inputs,
    jacobian_of_parameters,
    hessian_of_inputs,
    directional,
    linearised,
    over_inputs,
    over_rows_of_a_parameter,
    over_stacked_parameters,
    per_sample_gradients,
    ensemble,
    forward_mode_on_a_parameter,
    jacobian_of_autograd,
]


@STRICT
@pytest.mark.parametrize("transform", TRANSFORMS, **BY_NAME)
@own_process
def test_transform(transform, strict):
    model = two_linears()
    expected = transform(two_linears())
    sharded = Sharded(model, strict=strict)
    assert_all_bit_equal(transform(model), expected)
    assert sharded.gradients() == {}, "a transform's gradients are its result"


@STRICT
@own_process
def test_training_through_vmap(strict):
    assert_trains_like_plain(two_linears(), lambda model: vmap(model)(X).pow(2).sum(), strict=strict)


# ---------------------------------------------------------------- compilers


def deep():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8))


def compiled_equally(model, backend, strict):
    plain = copy.deepcopy(model)
    expected = squares(torch.compile(plain, backend=backend))
    expected.backward()
    torch._dynamo.reset()
    sharded = Sharded(model, strict=strict)
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        sharded.engine.zero_grad(True)
        loss = squares(compiled)
        sharded.engine.reshard()
        loss.backward()
        assert_bit_equal(loss, expected)
        assert_all_bit_equal(sharded.gradients(), local_gradients(plain))
        assert_nothing_left_behind(sharded)


@STRICT
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@own_process
def test_compile(backend, strict):
    compiled_equally(deep(), backend, strict)


@own_process
def test_inductor_is_right_or_refused():
    """Its kernels take raw pointers."""
    with right_or_refused("parameter '"):
        compiled_equally(deep(), "inductor", strict=True)


@own_process
def test_inductor_while_pinned():
    model = deep()
    plain = copy.deepcopy(model)
    expected = torch.compile(plain)(X)
    torch._dynamo.reset()
    sharded = Sharded(model)
    with sharded.pin(), torch.no_grad():
        assert_bit_equal(torch.compile(model)(X), expected)


def traced(model):
    return torch.jit.trace(model, (X,))


def scripted(model):
    return torch.jit.script(model)


def frozen(model):
    return torch.jit.freeze(torch.jit.script(model.eval()))


def proxied(model):
    return make_fx(model)(X)


def exported(model):
    return torch.export.export(model, (X,)).module()


def symbolically_traced(model):
    return torch.fx.symbolic_trace(model)


@STRICT
@pytest.mark.parametrize("trace", [traced, scripted, frozen, proxied, exported, symbolically_traced], **BY_NAME)
@own_process
def test_traced_graph_runs(trace, strict):
    model = two_linears()
    expected = model(X)
    sharded = Sharded(model, strict=strict)
    with right_or_refused("parameter '"):
        graph = trace(model)
        for _ in range(4):  # the profiling executor optimises after some runs
            sharded.engine.reshard()
            assert_bit_equal(graph(X), expected)


@pytest.mark.parametrize("trace", [traced, scripted], **BY_NAME)
@own_process
def test_traced_graph_trains(trace):
    """Scripted graphs are rewritten by what their profiler saw of the arguments, so the last bit may differ."""
    model, plain = two_linears(), two_linears()
    sharded = Sharded(model)
    graph, plain_graph = trace(model), trace(plain)
    for _ in range(4):  # the profiling executor optimises after some runs
        sharded.engine.zero_grad(True)
        plain.zero_grad()
        squares(graph).backward()
        squares(plain_graph).backward()
        torch.testing.assert_close(
            sharded.gradients(),
            local_gradients(plain),
            rtol=1e-6 if trace is scripted else 0,
            atol=1e-6 if trace is scripted else 0,
        )


# ---------------------------------------------------------------- modes


class CountOperators(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


class CountFunctions(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


@STRICT
@pytest.mark.parametrize("mode", [CountOperators, CountFunctions], **BY_NAME)
@own_process
def test_mode(mode, strict):
    with mode() as counted:
        assert_trains_like_plain(transformer(), transformer_loss, strict=strict)
    assert counted.calls > 100


@own_process
def test_operators_counted_are_those_of_the_plain_model():
    counts = []
    for sharded in (False, True):
        model = transformer()
        if sharded:
            keep = Sharded(model)  # noqa: F841
        with FlopCounterMode(display=False) as flops:
            transformer_loss(model).backward()
        counts.append(flops.get_total_flops())
    assert counts[0] == counts[1] > 0


@STRICT
@own_process
def test_profiler(strict):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        assert_trains_like_plain(transformer(), transformer_loss, strict=strict)
    assert any(event.name == "aten::linear" for event in profiled.events())


@own_process
def test_profiler_that_records_shapes_while_pinned():
    """It reads the address of each argument, which released parameters refuse."""
    model = transformer()
    expected = transformer_loss(model)
    sharded = Sharded(model)
    with sharded.pin(), profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as profiled:
        assert_bit_equal(transformer_loss(model), expected)
    assert any(event.name == "aten::linear" and event.input_shapes for event in profiled.events())


@own_process
def test_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    assert_trains_like_plain(transformer(), transformer_loss)


@own_process
def test_default_device_and_dtype():
    torch.set_default_device("cpu")
    torch.set_default_dtype(torch.float64)
    assert_trains_like_plain(transformer(), transformer_loss)


@own_process
def test_autocast_to_float16():
    def loss_of(model):
        with torch.autocast("cpu", torch.float16):
            return transformer_loss(model)

    assert_trains_like_plain(transformer(), loss_of)


# ---------------------------------------------------------------- higher-order operators


def conditional(model):
    return torch.cond(X.sum() > 0, lambda x: model[0](x), lambda x: model[2](x), (X,))


def attention_with_a_parameter_in_the_score(model):
    q = X.view(1, 2, 2, 8)
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + model[0].bias[h])


@STRICT
@pytest.mark.parametrize(
    "use, operator",
    [
        (conditional, torch.ops.higher_order.cond),
        (attention_with_a_parameter_in_the_score, torch.ops.higher_order.flex_attention),
    ],
    ids=["cond", "flex_attention"],
)
@own_process
def test_higher_order_operator(use, operator, strict):
    """They have no fallback for other keys, but can be told to fall through: the operators inside are seen anyway."""
    expected = use(two_linears())
    torch._dynamo.reset()
    model = two_linears()
    Sharded(model, strict=strict)
    with pytest.raises(NotImplementedError, match="could not find kernel for HigherOrderOperator"):
        use(model)
    operator.fallthrough(torch._C._dispatch_keys(model[0].weight).highestPriorityTypeId())
    assert_bit_equal(use(model), expected)

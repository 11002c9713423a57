"""What the adversarial tests share: the engine inside this Python, tests in processes of their own, comparisons."""

import contextlib
import copy
import faulthandler
import functools
import os
import signal
import sys
import traceback
from pathlib import Path

import pytest
import torch
import torch._dynamo  # optimizers and compilers import it; once here instead of in every child
from torch import nn

SECONDS_PER_TEST = 150

_source_dir = Path(__file__).resolve().parents[3]
_build_dir = Path(os.environ.get("FSDP_BUILD_DIR", _source_dir / "build")).resolve()
_DTYPE_CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}


# ---------------------------------------------------------------- processes


def own_process(test):
    """Runs a test in a forked child: a crash fails this test only, and what it switches on stays in the child."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        failure, status = _fork(lambda: test(*args, **kwargs))
        if os.WIFSIGNALED(status):
            pytest.fail(f"the interpreter was killed by {signal.Signals(os.WTERMSIG(status)).name}", pytrace=False)
        if failure or os.WEXITSTATUS(status) != 0:
            pytest.fail(failure or f"the interpreter exited with {os.WEXITSTATUS(status)}", pytrace=False)

    return run


def _fork(body):
    """What the body raised, as text, and the exit status of the child that ran it."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_in_child(body, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        failure = pipe.read().decode(errors="replace")
    return failure, os.waitpid(child, 0)[1]


def _run_in_child(body, writer):
    """Never returns: what the parent has registered to run at exit is the parent's."""
    status = 1
    try:
        signal.alarm(SECONDS_PER_TEST)
        faulthandler.enable(file=sys.__stderr__)
        torch.set_num_threads(1)
        body()
        status = 0
    except BaseException:
        os.write(writer, traceback.format_exc().encode()[-60000:])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


# ---------------------------------------------------------------- the engine


@functools.cache
def _engine_class():
    library = _build_dir / "libfsdp_engine_binding.so"
    assert library.exists(), f"{library} is missing: run make build"
    torch.classes.load_library(str(library))
    return torch.classes.fsdp_test.Engine


def unit_per_module(module):
    """One unit for each module that has parameters of its own."""
    return _first_takes_all(
        (name, child.named_parameters(name, recurse=False)) for name, child in module.named_modules()
    )


def one_unit(module):
    return [("", list(module.named_parameters()))]


def unit_per_layer(module):
    """One unit for each child of a list or sequence of modules, and one for the rest: what people do with models."""
    containers = (
        (name, child) for name, child in module.named_modules() if isinstance(child, (nn.ModuleList, nn.Sequential))
    )
    layers = [
        (f"{name}.{i}" if name else str(i), layer) for name, child in containers for i, layer in child.named_children()
    ]
    return _first_takes_all(
        [(name, layer.named_parameters(name)) for name, layer in layers] + [("", module.named_parameters())]
    )


def _first_takes_all(candidates):
    units, taken = [], set()
    for name, named_parameters in candidates:
        own = [(fqn, p) for fqn, p in named_parameters if id(p) not in taken]
        taken |= {id(p) for _, p in own}
        if own:
            units.append((name, own))
    return units


class Sharded:
    """A module whose parameters are in an engine of one rank.

    With strict release each unit is released when the outermost operator on it ends, its memory is overwritten with NaN
    and the next gather uses other memory: what would read a released parameter reads NaN or raises.
    """

    def __init__(self, module, units=unit_per_module, *, compute=None, reduce=None, strict=True):
        self.module = module
        self.engine = _engine_class()(strict)
        for name, named_parameters in units(module):
            fqns, parameters = zip(*named_parameters)
            self.engine.add_unit(
                list(parameters), list(fqns), name, _DTYPE_CODES.get(compute), _DTYPE_CODES.get(reduce)
            )

    def gradients(self):
        return dict(self.engine.gradients())

    def full_parameters(self):
        return dict(self.engine.full_parameters())

    def leaves(self):
        return dict(self.engine.leaves())

    def gradients_left_on_module(self):
        """Names of parameters whose .grad is more than the engine's sentinel."""
        return [
            name
            for name, p in self.module.named_parameters()
            if p.grad is not None and not self.engine.is_gradient_sentinel(p.grad)
        ]

    @contextlib.contextmanager
    def full_params(self, writeback=True):
        self.engine.open_full_params(writeback)
        try:
            yield
        finally:
            self.engine.close()

    @contextlib.contextmanager
    def pin(self, *parameters):
        self.engine.open_pin(list(parameters))
        try:
            yield
        finally:
            self.engine.close()


# ---------------------------------------------------------------- comparisons


def assert_bit_equal(actual, expected, what=""):
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    actual, expected = actual.detach(), expected.detach()
    actual, expected = (t.to_dense() if t.layout != torch.strided else t for t in (actual, expected))
    assert not actual.isnan().any(), f"{what}: NaN, as in released memory"
    worst = (actual.double() - expected.double()).abs().max().item() if actual.numel() else 0.0
    assert worst == 0.0, f"{what}: differs by up to {worst:.2e}"


def assert_all_bit_equal(actual, expected, what="value"):
    """Of two dictionaries, or two sequences."""
    if not isinstance(actual, dict):
        actual, expected = dict(enumerate(actual)), dict(enumerate(expected))
    assert actual.keys() == expected.keys()
    for key in actual:
        assert_bit_equal(actual[key], expected[key], f"{what} {key}")


def local_gradients(module):
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def seeded(loss_of, module, seed=7):
    torch.manual_seed(seed)
    return loss_of(module)


def assert_trains_like_plain(
    module, loss_of, *, units=unit_per_module, compute=None, strict=True, backward=torch.Tensor.backward
):
    """The loss and all gradients of a sharded module equal, bit for bit, those of a plain copy of it."""
    plain = copy.deepcopy(module)
    for parameter in plain.parameters():
        parameter.data = parameter.data.to(compute or parameter.dtype)  # and not buffers, as module.to would
    expected = seeded(loss_of, plain)
    backward(expected)

    sharded = Sharded(module, units, compute=compute, strict=strict)
    loss = seeded(loss_of, module)
    sharded.engine.reshard()
    backward(loss)

    assert_bit_equal(loss, expected, "loss")
    assert_all_bit_equal(sharded.gradients(), local_gradients(plain), "gradient of")
    assert_nothing_left_behind(sharded)
    return sharded


def assert_nothing_left_behind(sharded):
    assert sharded.gradients_left_on_module() == []
    assert sharded.engine.gathered_units() == 0, "units stayed gathered after backward"
    assert sharded.engine.gradient_buffer_bytes() == 0, "gradient buffers were not given back"


@contextlib.contextmanager
def refuses(*words):
    """The body must raise an error of the engine with all these words in it."""
    with pytest.raises(Exception) as raised:
        yield
    message = str(raised.value)
    for word in ("fsdp:", *words):
        assert word in message, f"an error without {word!r}: {message}"


@contextlib.contextmanager
def right_or_refused(*words):
    """The body must either pass all its comparisons or raise an error of the engine, with these words in it."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:  # any kind, if it says what is wrong
        for word in ("fsdp:", *words):
            assert word in str(error), f"neither right nor refused by the engine: {type(error).__name__}: {error}"

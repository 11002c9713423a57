"""Each attribute of torch.Tensor on a sharded parameter: as on a plain tensor, or refused; the views never part."""

import logging
import warnings

import torch

from package_ranks import run_ranks
from parameter_views import assert_values, drift, own_rows, same, sharded_linear
from tensor_surface import JUDGED, called, in_place, judged

SIZE = 5  # a prime number of rows, so that ranks have different numbers of them


def samples(like):
    """Arguments with which methods of Tensor are called, in tensors of the kind of `like`."""
    other = like.detach() * 2 + 1
    positive = like.detach() > 0
    columns, rows = positive.long(), torch.arange(len(like))
    return [
        (),
        (1,),
        (0,),
        (0.5,),
        (other,),
        (other, other),
        (0, 1),
        (-0.1, 0.1),
        (positive, 0.5),
        (positive, other),
        (0, rows, 0.5),
        (0, rows, other),
        (0, columns, other),
        (0, columns, other, "sum"),
        (columns, other),
        ((rows,), other),
        (other.unsqueeze(0), other.unsqueeze(0)),
        (other[:, 0], other[:, 1]),
        (2, 0, 1.0),
        ((SIZE, SIZE),),
        ((SIZE * SIZE,),),
        ((SIZE, SIZE), (1, SIZE)),
        (torch.float64,),
        (abs,),
        (other, max),
        (other, other, max),
    ]


TARGETS = {
    "parameter": lambda p: p,
    "data": lambda p: p.data,
    "transposed": lambda p: p.data.t(),
    "local": lambda p: p.to_local(),
    "data of local": lambda p: p.data.to_local().data,
}


def outcomes(rank, size, names, target, backend):
    """What each of these methods of Tensor does on a target: an outcome for each sample that a plain tensor takes.

    "reads", "writes" (the values that a plain tensor gets), "other" (writes other values) or the class of the error.
    Asserts after each call that both views of the parameter agree.
    """
    warnings.simplefilter("ignore")
    logging.disable()
    model, whole, parameter = sharded_linear(SIZE, SIZE, backend)
    start = whole.detach().clone()
    result = {}
    for name in names:
        result[name] = [
            outcome
            for position in range(len(samples(start)))
            if (outcome := _outcome(name, position, TARGETS[target], model[0], whole, parameter, start)) is not None
        ]
    return result


def _outcome(name, position, target, holder, whole, parameter, start):
    with torch.no_grad():
        if not same(whole.detach(), start):
            parameter.copy_(start)
            assert_values(whole, parameter, start)
        plain = start.clone()
        expected = target_of_plain(target, plain, parameter)
        if _call(expected, name, position) is not None:
            return None
        version = parameter.leaf._version
        error = _call(target(parameter), name, position)
        moved = parameter.leaf._version > version
    where = f"{name}, sample {position}"
    assert not drift(holder, "weight", whole, parameter), where
    local = parameter._local_tensor.detach()
    changed = not same(local, own_rows(start, parameter))
    assert moved or not changed, f"{where}: a write that was not counted"
    if moved:  # on this rank, and so on all
        full = parameter.full_tensor().detach()
        assert same(whole.detach(), full), f"{where}: the whole parameter has old values"
    if error is not None:
        assert not changed, f"{where}: raised {error!r} after a write"
        return type(error).__name__
    if not moved:
        return "reads"
    return (
        "writes" if same(local, expected if expected.shape == local.shape else own_rows(plain, parameter)) else "other"
    )


def target_of_plain(target, plain, parameter):
    """What a plain tensor has in the place of the target."""
    if target(parameter).shape != plain.shape:  # local rows
        return own_rows(plain, parameter)
    return plain.t() if target(parameter).stride() != plain.stride() else plain


def _call(tensor, name, position):
    """Calls a method; returns the exception that it raises."""
    try:
        getattr(tensor, name)(*samples(tensor)[position])
    except Exception as error:
        return error
    return None


def judgement(outcomes):
    refused = {outcome for outcome in outcomes if outcome.endswith("Error")}
    done = set(outcomes) - refused
    if not outcomes:
        return "not called"
    if not done:
        return "refuses"
    if "other" in done:
        return "random"
    return ("writes" if "writes" in done else "reads") + (", refuses some" if refused else "")


def test_every_attribute_of_tensor_is_judged():
    names = [name for each in JUDGED for name in judged(each)]
    assert sorted(names) == sorted(set(names))
    assert set(names) == set(dir(torch.Tensor))
    assert all(not callable(getattr(torch.Tensor, name)) for name in judged("attributes"))


def every_method(rank, size):
    found = outcomes(rank, size, called(), "parameter", "gloo")
    for name, more in outcomes(rank, size, in_place(), "data", "gloo").items():
        found[name] += more
    return found


def test_methods_do_as_they_are_judged():
    for found in run_ranks(2, every_method):
        for name, outcome in found.items():
            assert name in judged(judgement(outcome)), (name, outcome)


def writes_through_other_tensors(rank, size):
    for target, backend in (("data", "shm"), ("transposed", "gloo"), ("local", "shm"), ("data of local", "gloo")):
        names = [*judged("writes"), *judged("random")] if target != "transposed" else ["mul_", "addmm_", "zero_"]
        found = 0
        for name, outcome in outcomes(rank, size, names, target, backend).items():
            assert "other" not in outcome or name in judged("random"), (target, name, outcome)
            assert set(outcome) <= {"reads", "writes", "other"}, (target, name, outcome)
            found += "writes" in outcome
        assert found >= len(names) - 15  # local rows are no square matrix, so that some samples do not fit


def test_writes_through_data_and_views_and_local_rows_are_counted():
    run_ranks(2, writes_through_other_tensors)


SAME_AS_PLAIN = """
    T H mT mH device dtype is_cpu is_cuda is_leaf is_meta is_sparse is_quantized itemsize layout ndim real grad_fn
    output_nr requires_grad retains_grad shape grad
"""


def attributes(rank, size):
    _, whole, parameter = sharded_linear(SIZE, 7)
    plain = whole.detach().clone().requires_grad_()
    for name in SAME_AS_PLAIN.split():
        own, expected = getattr(parameter, name), getattr(plain, name)
        if isinstance(expected, torch.Tensor):
            own, expected = own.full_tensor().tolist(), expected.tolist()
        assert own == expected, name
    with torch.no_grad():
        parameter.real = plain.detach() * 3
    assert_values(whole, parameter, plain.detach() * 3)


def test_attributes_are_those_of_a_plain_tensor():
    run_ranks(2, attributes)

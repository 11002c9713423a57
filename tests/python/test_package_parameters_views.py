"""Writes to sharded parameters through views, lists, out= and other tensors of the same memory, over shared memory and
Gloo, with and without rows; and the methods of DTensor."""

import pytest
import torch
from torch import nn

from package_ranks import run_ranks
from parameter_views import assert_values, drift, own_rows, same, sharded_linear

ROWS, COLUMNS = 4, 3  # three ranks get 2, 2 and 0 rows


def raises(error, *words):
    return pytest.raises(error, match="(?s)" + ".*".join(words))


# Each adds 1 to all elements of the parameter.
WRITES = {
    "in place": lambda model, p: p.add_(1),
    "data": lambda model, p: p.data.add_(1),
    "detach": lambda model, p: p.detach().add_(1),
    "data of data": lambda model, p: p.data.data.detach().add_(1),
    "operator": lambda model, p: p.data.__iadd__(1),
    "transposed": lambda model, p: p.t().add_(1),
    "transposed twice": lambda model, p: p.T.t().data.add_(1),
    "all of it": lambda model, p: p[:].add_(1),
    "one more dimension": lambda model, p: p.unsqueeze(1).add_(1),
    "columns": lambda model, p: [p[:, i].add_(1) for i in range(COLUMNS)],
    "chunks of columns": lambda model, p: [part.add_(1) for part in p.chunk(2, dim=1)],
    "splits of columns": lambda model, p: [part.add_(1) for part in torch.split(p, 2, dim=1)],
    "local": lambda model, p: p.to_local().add_(1),
    "flat local": lambda model, p: p.to_local().view(-1).add_(1),
    "data of local": lambda model, p: p.to_local().data.add_(1),
    "columns of local": lambda model, p: [column.add_(1) for column in p.to_local().unbind(1)],
    "local of a view": lambda model, p: p.t().to_local().data.add_(1),
    "_local_tensor": lambda model, p: p._local_tensor.add_(1),
    "data of _local_tensor": lambda model, p: p._local_tensor.data.add_(1),
    "leaf": lambda model, p: p.leaf.add_(1),
    "state dict": lambda model, p: model.state_dict()["0.weight"].add_(1),
    "state dict with parameters": lambda model, p: model.state_dict(keep_vars=True)["0.weight"].add_(1),
    "copy_": lambda model, p: p.copy_(p + 1),
    "copy_ of a whole tensor": lambda model, p: p.copy_(p.full_tensor() + 1),
    "copy_ of a row": lambda model, p: p.add_(1).copy_(p.detach().clone()),
    "out=": lambda model, p: torch.add(p, 1, out=p),
    "out= of a view": lambda model, p: torch.add(p.data, 1, out=p.data),
    "_foreach_add_": lambda model, p: torch._foreach_add_([p], 1.0),
    "_foreach_add_ of views": lambda model, p: torch._foreach_add_([p.data, p.t()], 0.5),
    "masked_fill_": lambda model, p: p.add_(1).masked_fill_(p < -100, 0),
    "lerp_": lambda model, p: p.lerp_(p + 2, 0.5),
    "optimizer": lambda model, p: _step(p),
    "functional optimizer": lambda model, p: torch.optim._functional.sgd(
        [p],
        [-torch.ones_like(p)],
        [None],
        weight_decay=0,
        momentum=0,
        lr=1,
        dampening=0,
        nesterov=False,
        maximize=False,
    ),
    "init": lambda model, p: p.copy_(nn.init.zeros_(torch.empty_like(p)) + p + 1),
}


def _step(parameter):
    parameter.grad = -torch.ones_like(parameter)
    torch.optim.SGD([parameter], lr=1).step()


def writes(rank, size, backend, columns=COLUMNS):
    model, whole, parameter = sharded_linear(ROWS, columns, backend)
    expected = whole.detach().clone()
    for name, write in WRITES.items():
        with torch.no_grad():
            write(model, parameter)
        expected += 1
        try:
            assert_values(whole, parameter, expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        assert not drift(model[0], "weight", whole, parameter), name


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_writes_are_seen_however_they_are_made(ranks, backend):
    run_ranks(ranks, writes, backend)


def lost_writes(rank, size):
    """Parts that torch makes by a gather are copies; DTensors let writes to them pass without a word."""
    model, whole, parameter = sharded_linear(ROWS, COLUMNS)
    values = whole.detach().clone()
    for part in (
        lambda p: p.detach()[0],
        lambda p: p.detach().chunk(2)[0],
        lambda p: p.detach()[1:3],
        lambda p: p.detach()[0].unsqueeze(0),
    ):
        torch.testing.assert_close(part(parameter).full_tensor(), part(values))
        with raises(RuntimeError, "'0.weight'", "copy"):
            part(parameter).fill_(1)
        part(parameter).clone().fill_(1)
    with raises(RuntimeError, "'0.weight'"), torch.no_grad():
        parameter[0, 1] = 5
    for refused in (
        lambda: parameter.data.t_(),
        lambda: parameter.data.squeeze_(),
        lambda: parameter.data.resize_(2, 2),
        lambda: parameter.data.set_(parameter.data),
        lambda: parameter.data.apply_(abs),
        lambda: parameter.share_memory_(),
        lambda: parameter.data.scatter_add_(0, (parameter.detach() > 0).long(), parameter.detach()),
        lambda: parameter.data.cumsum_(0),
        lambda: torch._foreach_copy_([parameter.data], [parameter.detach() + 1]),
        lambda: setattr(parameter, "data", parameter.data * 2),
        lambda: setattr(parameter, "data", values),
        lambda: setattr(parameter, "data", parameter.data.double()),
        lambda: torch.nn.utils.vector_to_parameters(torch.zeros(ROWS * COLUMNS), model.parameters()),
    ):
        with raises(NotImplementedError, "'0.weight'"):
            refused()
    for exported in (parameter.detach(), parameter.data):
        with raises(BufferError, "'0.weight'", "to_local()"):
            torch.from_dlpack(exported)
    parameter.data = parameter.data
    parameter.data = parameter.data.to(torch.float32)
    assert_values(whole, parameter, values)
    assert not drift(model[0], "weight", whole, parameter)


@pytest.mark.parametrize("ranks", [2, 3])
def test_writes_that_would_be_lost_are_refused(ranks):
    run_ranks(ranks, lost_writes)


RANDOM = {"bernoulli", "normal", "rand", "randn"}


def foreach_and_out(rank, size):
    """Every in-place function on lists, and every function with out=, of torch: as on plain tensors, or an error."""
    model, whole, parameter = sharded_linear(ROWS, ROWS)
    start = whole.detach().clone()
    written = 0
    for name in [name for name in dir(torch) if _writes_to_lists(name) or _has_out(name)]:
        for arguments in (lambda x: [], lambda x: [x], lambda x: [x, x], lambda x: [2.0]):
            plain = start.clone()
            if not _run(name, plain, arguments):
                continue
            with torch.no_grad():
                if not torch.equal(parameter.full_tensor(), start):
                    parameter.copy_(start)
                    assert_values(whole, parameter, start)
                done = _run(name, parameter, arguments)
            written += done
            if name not in RANDOM:
                own = plain if done else start
                assert same(parameter._local_tensor.detach(), own_rows(own, parameter)), name
            assert same(whole.detach(), parameter.full_tensor().detach()), name
            assert not drift(model[0], "weight", whole, parameter), name
    return written


def _writes_to_lists(name):
    return name.startswith("_foreach_") and name.endswith("_")


def _has_out(name):
    packet = getattr(torch.ops.aten, name, None)
    return isinstance(packet, torch._ops.OpOverloadPacket) and "out" in packet.overloads() and not name.startswith("_")


def _run(name, tensor, arguments):
    """Whether the function does it."""
    source = tensor.detach().clone()
    others = [other if isinstance(other, float) else source + 1 for other in arguments(tensor)]
    try:
        if _writes_to_lists(name):
            lists = [other if isinstance(other, float) else [other] for other in others]
            getattr(torch, name)([tensor.detach()], *lists)
        else:
            getattr(torch, name)(source, *others, out=tensor.detach())
    except Exception:
        return False
    return True


def test_functions_on_lists_and_with_out():
    written = run_ranks(2, foreach_and_out)
    assert written[0] == written[1] > 80, written


INITIALIZERS = {
    "constant_": (2.0,),
    "dirac_": None,  # takes three dimensions and more
    "eye_": (),
    "kaiming_normal_": (),
    "kaiming_uniform_": (),
    "normal_": (),
    "ones_": (),
    "orthogonal_": (),
    "sparse_": (0.5,),
    "trunc_normal_": (),
    "uniform_": (),
    "xavier_normal_": (),
    "xavier_uniform_": (),
    "zeros_": (),
}


def initializers(rank, size):
    """On sharded parameters, whose random numbers are those of DTensors: they differ from one process's."""
    model, whole, parameter = sharded_linear(ROWS, COLUMNS)
    done = []
    for name, arguments in INITIALIZERS.items():
        if arguments is None:
            continue
        try:
            getattr(nn.init, name)(parameter, *arguments)
            done.append(name)
        except (NotImplementedError, RuntimeError) as error:
            assert "'0.weight'" in str(error) or "DTensor" in str(error) or "sharding" in str(error), error
        assert_values(whole, parameter, parameter.full_tensor().detach())
        if name in ("constant_", "ones_", "zeros_"):
            assert_values(whole, parameter, getattr(nn.init, name)(torch.empty(ROWS, COLUMNS), *arguments))
        assert not drift(model[0], "weight", whole, parameter), name
    return done


def test_initializers():
    assert set(INITIALIZERS) == {name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
    for done in run_ranks(2, initializers):
        assert set(done) >= set(INITIALIZERS) - {"dirac_", "eye_", "orthogonal_", "sparse_"}


def vectors(rank, size):
    model, whole, parameter = sharded_linear(ROWS, COLUMNS)
    vector = torch.nn.utils.parameters_to_vector(model.parameters())
    assert torch.equal(vector.full_tensor().detach(), whole.detach().flatten())
    (vector * 3).full_tensor().sum().backward()
    assert torch.equal(parameter.grad.full_tensor(), torch.full((ROWS, COLUMNS), 3.0))


def test_parameters_to_vector():
    run_ranks(2, vectors)


def dtensor_methods(rank, size):
    from torch.distributed.tensor import DTensor, Replicate, Shard

    model, whole, parameter = sharded_linear(ROWS, COLUMNS)
    values = whole.detach().clone()
    assert parameter.placements == (Shard(0),) and parameter.device_mesh.size() == size
    assert parameter.full_tensor().requires_grad and torch.equal(parameter.full_tensor(), values)
    for placements in ([Replicate()], [Shard(0)], [Shard(1)]):
        moved = parameter.redistribute(placements=placements)
        assert isinstance(moved, DTensor) and moved.placements == tuple(placements)
        with torch.no_grad():
            moved.zero_()
        assert_values(whole, parameter, values)
    for of in (
        lambda p: p.to_local(),
        lambda p: p.redistribute(placements=[Shard(0)]).to_local(),
        lambda p: p.view_as(p).to_local(),
        lambda p: p.to_local(grad_placements=[Shard(0)]),
    ):
        local = of(parameter)
        assert local.requires_grad and torch.equal(local.detach(), own_rows(values, parameter))
        (local * (rank + 1)).sum().backward()
        expected = torch.cat([torch.full_like(part, r + 1) for r, part in enumerate(values.chunk(size))])
        assert torch.equal(parameter.grad.full_tensor(), expected)
        model.zero_grad()
    assert isinstance(parameter.to_local(), nn.Parameter) and isinstance(parameter.detach().to_local(), torch.Tensor)
    (parameter * 2).full_tensor().sum().backward()
    assert torch.equal(parameter.grad.full_tensor(), torch.full_like(values, 2))
    assert_values(whole, parameter, values)


def test_methods_of_dtensors():
    run_ranks(2, dtensor_methods)


def hybrid(rank, size):
    """On a mesh of two dimensions: shards over pairs of ranks, replicas over the first and the second."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, whole, parameter = sharded_linear(5, COLUMNS, mesh=mesh)
    assert parameter.placements == (Replicate(), Shard(0)) and "Replicate" in repr(parameter)
    expected = whole.detach().clone()
    for name in ("in place", "data", "local", "state dict", "copy_", "copy_ of a whole tensor", "_foreach_add_"):
        with torch.no_grad():
            WRITES[name](model, parameter)
        expected += 1
        assert_values(whole, parameter, expected)
    full = torch.arange(15.0).reshape(5, COLUMNS)
    parameter.grad = full.clone()
    assert torch.equal(parameter.grad.full_tensor(), full)
    model.load_state_dict({"0.weight": full})
    assert_values(whole, parameter, full)
    assert not drift(model[0], "weight", whole, parameter)


def test_hybrid_sharding():
    run_ranks(4, hybrid)

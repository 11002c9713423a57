"""Writes to this rank's rows that no version counter counts: through .data of views, numpy arrays, DLPack tensors and
storages, while gathered copies are kept."""

import numpy
import pytest
import torch
from torch import nn

from package_ranks import run_ranks
from parameter_views import assert_values, drift, sharded_linear

WIDTH = 4
ROWS, COLUMNS = 5, 3  # two ranks get 3 and 2 rows, three ranks 2, 2 and 1


def add_by_ctypes(tensor):
    import ctypes

    numbers = (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())
    for position in range(len(numbers)):
        numbers[position] += 1


def add_by_storage(tensor):
    storage, begin = tensor.untyped_storage(), tensor.storage_offset() * 4
    values = torch.tensor(storage[begin : begin + tensor.numel() * 4].tolist(), dtype=torch.uint8)
    storage[begin : begin + tensor.numel() * 4].copy_((values.view(torch.float32) + 1).untyped_storage())


def rows(p):
    return p.to_local().detach()


# Each adds 1 to all elements of this rank's rows.
WRITES = {
    "data of a row": lambda p: [row.data.add_(1) for row in p.to_local()],
    "data of a column": lambda p: [p.to_local()[:, i].data.add_(1) for i in range(COLUMNS)],
    "data of a view": lambda p: p.to_local().view(-1).data.add_(1),
    "data of data": lambda p: p.data.to_local().t().data.data.add_(1),
    "data of _local_tensor": lambda p: p._local_tensor[:].data.add_(1),
    "data of a view of the leaf": lambda p: p.leaf.view(-1, COLUMNS).data.add_(1),
    "_foreach_": lambda p: torch._foreach_add_([row.data for row in p.to_local()], 1.0),
    "state dict": lambda p: p.detach().to_local()[...].data.add_(1),
    "set_": lambda p: torch.empty(0).set_(p.to_local().detach()).add_(1),
    "counted": lambda p: p.to_local().add_(1),
    "numpy": lambda p: numpy.add(rows(p).numpy(), 1, out=rows(p).numpy()),
    "numpy of a row": lambda p: [row.numpy().__iadd__(1) for row in rows(p)],
    "asarray": lambda p: numpy.asarray(rows(p)).__iadd__(1),
    "from_dlpack": lambda p: torch.from_dlpack(rows(p)).add_(1),
    "from_dlpack of a row": lambda p: [torch.from_dlpack(row).add_(1) for row in rows(p)],
    "numpy.from_dlpack": lambda p: numpy.add(numpy.from_dlpack(rows(p)), 1, out=torch.from_dlpack(rows(p)).numpy()),
    "storage": lambda p: add_by_storage(rows(p)),
    "address": lambda p: add_by_ctypes(rows(p)),
}


def writes(rank, size, backend):
    model, whole, parameter = sharded_linear(ROWS, COLUMNS, backend)
    expected = whole.detach().clone()
    x = torch.ones(1, COLUMNS)
    for name, write in WRITES.items():
        with torch.no_grad():
            write(parameter)
        expected += 1
        try:
            with torch.no_grad():
                torch.testing.assert_close(model(x), x @ expected.t())
            assert_values(whole, parameter, expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        assert not drift(model[0], "weight", whole, parameter), name


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_writes_are_seen_however_they_are_made(ranks, backend):
    run_ranks(ranks, writes, backend)


KEPT = {
    "numpy": lambda p: rows(p).numpy(),
    "numpy of _local_tensor": lambda p: p._local_tensor.detach().numpy(),
    "from_dlpack": lambda p: torch.from_dlpack(rows(p)),
    "to_dlpack": lambda p: torch.utils.dlpack.from_dlpack(torch.to_dlpack(rows(p))),
    "numpy.from_dlpack": lambda p: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(rows(p))).numpy(),
    "data": lambda p: p.to_local().view(-1).data,
}


def kept(rank, size, backend, name):
    """What was exported once is watched for ever: reads, counted writes and training in between change nothing."""
    model, whole, parameter = sharded_linear(ROWS, COLUMNS, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exported = KEPT[name](parameter)
    x = torch.ones(1, COLUMNS)
    for _ in range(3):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for value in (2.0, 3.0):
            with torch.no_grad():
                model(x)
            exported[...] = value
            with torch.no_grad():
                torch.testing.assert_close(model(x), x @ torch.full((COLUMNS, ROWS), value))


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("name", KEPT)
def test_memory_that_was_exported_is_watched(name, backend):
    run_ranks(2, kept, backend, name)


def mixed(rank, size, backend):
    """Gathered copies in another dtype, over one rank as well."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model, whole, parameter = sharded_linear(
        ROWS, COLUMNS, backend, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    )
    x = torch.ones(1, COLUMNS)
    with torch.no_grad():
        model(x)
        for value in (0.5, 2.0):
            rows(parameter).numpy()[...] = value
            assert torch.equal(model(x), torch.full((1, ROWS), value * COLUMNS, dtype=torch.bfloat16))
        parameter.to_local()[:].data.fill_(float("nan"))
        assert model(x).isnan().all()


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_copies_in_another_dtype(ranks, backend):
    run_ranks(ranks, mixed, backend)


def reads_of_one_rank(rank, size, backend):
    """A pointer that one rank alone takes, to read, gathers nothing."""
    from fsdp_cpp import EngineOptions, fully_shard

    model, whole, parameter = sharded_linear(ROWS, COLUMNS, backend)
    other = fully_shard(
        nn.Linear(COLUMNS, ROWS), reshard_after_forward=True, engine_options=EngineOptions(backend=backend)
    )
    x = torch.ones(1, COLUMNS)
    expected = (x @ whole.detach().t()).clone()
    for step in range(4):
        with torch.no_grad() if step % 2 else torch.enable_grad():
            result = model(x)
            other_result = other(x)
            if rank == 0:
                rows(parameter).numpy().sum(), rows(parameter).data_ptr(), torch.from_dlpack(rows(parameter))
                rows(next(other.parameters())).numpy().sum()
                str(parameter.to_local())
            torch.testing.assert_close(model(x), expected)
        if not step % 2:
            (result.sum() + other_result.sum()).backward()


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_reads_of_one_rank(backend):
    run_ranks(2, reads_of_one_rank, backend)


def parked(rank, size, backend):
    """Parameters that are kept spread over smaller groups."""
    from fsdp_cpp import EngineOptions, fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    for layer in model:
        fully_shard(layer, reshard_after_forward=2, engine_options=EngineOptions(backend=backend))
    x = torch.ones(1, WIDTH)
    exported = None
    with torch.no_grad():
        for value in (0.5, 2.0, 1.0, 3.0):
            model(x)
            if value < 2 and exported is None:
                for parameter in model.parameters():
                    parameter.to_local()[:].data.fill_(value)
                exported = [rows(parameter).numpy() for parameter in model.parameters()]
            else:
                for array in exported:
                    array[...] = value
            torch.testing.assert_close(model(x), torch.full((1, WIDTH), (value * WIDTH) ** 3))


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_parked_parameters(backend):
    run_ranks(4, parked, backend)


def between_forward_and_backward(rank, size, backend):
    model, whole, parameter = sharded_linear(ROWS, COLUMNS, backend)
    x = torch.ones(1, COLUMNS, requires_grad=True)
    for write in (WRITES["numpy"], WRITES["data of a row"]):
        loss = model(x).sum()
        write(parameter)
        with pytest.raises(RuntimeError, match="(?s)unit 'root'.*written between forward and backward"):
            loss.backward()
        model.reset_iter_state()
        model(x).sum().backward()


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_writes_between_forward_and_backward_are_refused(backend):
    run_ranks(2, between_forward_and_backward, backend)


def ranks_without_rows(rank, size, backend):
    """Ranks that hold no rows notice writes that are counted alone; others are refused unless the unit is released."""
    model, whole, parameter = sharded_linear(size - 1, COLUMNS, backend)
    x = torch.ones(1, COLUMNS)
    expected = torch.zeros_like(whole.detach())
    with torch.no_grad():
        model(x)
        for write in (lambda p: p.data.to_local().fill_(1), lambda p: torch._foreach_add_([p.to_local().data], 1.0)):
            write(parameter)
            expected += 1
            assert_values(whole, parameter, expected)
        parameter.to_local()[:].data.add_(1)
        if rank < size - 1:
            with pytest.raises(RuntimeError, match=f"(?s)'0.weight' was written.*Rank {size - 1} .*holds none"):
                model(x)
        model.reshard()
        assert_values(whole, parameter, expected + 1)


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_without_rows(ranks, backend):
    run_ranks(ranks, ranks_without_rows, backend)


def write_of_one_rank(rank, size, backend, name):
    """In a loop without backward, where the other rank has no reason to gather."""
    model, whole, parameter = sharded_linear(ROWS, COLUMNS, backend)
    with torch.no_grad():
        model(torch.ones(1, COLUMNS))
        if rank == 0:
            WRITES[name](parameter)
            model(torch.ones(1, COLUMNS))


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("name", ["numpy", "counted"])
def test_a_write_of_one_rank_is_an_error(name, backend):
    error, _ = run_ranks(2, write_of_one_rank, backend, name, expect_failure=True)
    for part in ("unit 'root'", "written while gathered parameters were kept", "reshard"):
        assert part in str(error), error


def resized(rank, size):
    model, whole, parameter = sharded_linear(ROWS, COLUMNS)
    with pytest.raises(RuntimeError, match="shard cannot be resized"):
        rows(parameter).resize_(100, 100)


def test_memory_of_shards_cannot_be_resized():
    run_ranks(2, resized)

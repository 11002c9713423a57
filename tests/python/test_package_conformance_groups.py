"""fully_shard over process groups as users make them, beside FSDP2."""

import datetime
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from package_beside import (
    assert_same,
    assert_same_as_fsdp2,
    error_of,
    make_model,
    run_ranks,
    shard_model,
    train,
    with_both,
)
from ports import free_port

TIMEOUT = datetime.timedelta(seconds=60)


def trained(fsdp, rank, mesh=None, seed=3):
    model = shard_model(fsdp, make_model(seed=seed), mesh=mesh)
    result = train(model, 2, rank, torch.optim.AdamW(model.parameters(), lr=1e-2))
    return result, [str(p.placements) for p in model.parameters()]


def rendezvous(rank, size, port, other_port, folder):
    """Trains over groups from each kind of init_method, one after the other in one process."""
    dist.destroy_process_group()
    results = []
    for method in (f"file://{folder}/rendezvous", f"tcp://127.0.0.1:{port}"):
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size, timeout=TIMEOUT)
        results.append(with_both(rank, size, both_trained))
        dist.destroy_process_group()
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(other_port), RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank)
    )
    results.append(with_both(rank, size, both_trained))  # fully_shard starts torch.distributed by itself
    return results


def both_trained(fsdp, rank, size):
    return trained(fsdp, rank)


def test_rendezvous_and_groups_that_follow_each_other(tmp_path):
    with free_port() as first, free_port() as second:
        runs = run_ranks(2, rendezvous, first, second, str(tmp_path))
    for rank, results in enumerate(runs):
        for ours, theirs in results:
            assert_same(ours, theirs, f"rank {rank}")
            assert_same(ours, results[0][0], f"rank {rank}")


def parts_of_the_ranks(fsdp, rank, size):
    """Three ranks: a mesh over two of them, a mesh over a group of the user's, another model over all."""
    results = []
    group = dist.new_group([0, 2])
    if rank != 1:
        results.append(trained(fsdp, rank, DeviceMesh.from_group(group, "cpu")))
    subset = DeviceMesh("cpu", [2, 1])
    if rank != 0:
        results.append(trained(fsdp, rank, subset, seed=5))
    return results


def test_meshes_over_some_of_the_ranks():
    assert_same_as_fsdp2(3, parts_of_the_ranks)


def two_meshes(fsdp, rank, size):
    """Two models of one process over different meshes, in turns."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    models = [shard_model(fsdp, make_model(seed=seed), mesh=mesh[name]) for seed, name in ((1, "rows"), (2, "columns"))]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    return [
        train(model, 1, rank, optimizer) for _ in range(2) for model, optimizer in zip(models, optimizers, strict=True)
    ]


def cube(fsdp, rank, size):
    """A slice of two dimensions of a mesh of three, and one of its dimensions."""
    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pipeline", "replicate", "shard"))
    return trained(fsdp, rank, mesh["replicate", "shard"]), trained(fsdp, rank, mesh["shard"])


def meshes_of_four(fsdp, rank, size):
    return two_meshes(fsdp, rank, size), cube(fsdp, rank, size)


def test_slices_of_larger_meshes():
    assert_same_as_fsdp2(4, meshes_of_four)


def different_in_one_model(rank, size):
    import fsdp_cpp

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    errors = []
    for inner, outer in (
        ({"mesh": mesh["a"]}, {"mesh": mesh["b"]}),
        ({"offload_policy": fsdp_cpp.CPUOffloadPolicy()}, {}),
        ({"engine_options": fsdp_cpp.EngineOptions(max_gathered_units=3)}, {}),
    ):
        model = make_model()
        fsdp_cpp.fully_shard(model.blocks[0], **inner)
        errors.append(error_of(lambda model=model, outer=outer: fsdp_cpp.fully_shard(model, **outer)))
        model(torch.tensor([[1, 2]]))  # the block is still sharded, and works
    return errors


def test_arguments_that_must_not_differ_in_one_model():
    for errors in run_ranks(2, different_in_one_model):
        for (kind, text), argument in zip(errors, ("mesh", "offload_policy", "engine_options"), strict=True):
            assert kind == "NotImplementedError"
            assert f"{argument}=" in text and "'blocks.0'" in text, text

"""torch.distributed.pipelining over sharded stages: beside FSDP2's without install(), refused with it."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from package_ranks import run_ranks


def make_stage(shard, mesh):
    torch.manual_seed(0)
    layers = nn.Sequential(*(layer for _ in range(2) for layer in (nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5))))
    place = mesh["pipeline"].get_local_rank()
    stage = layers[:3] if place == 0 else layers[3:]
    shard(stage, mesh=mesh["shard"])
    group = mesh["pipeline"].get_group()
    return stage, ScheduleGPipe(
        PipelineStage(stage, place, 2, torch.device("cpu"), group=group), 2, loss_fn=nn.functional.mse_loss
    )


def train_stage(shard, mesh, steps):
    """The stage's whole parameters after some steps of two microbatches."""
    stage, schedule = make_stage(shard, mesh)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(10 * step + mesh["shard"].get_local_rank())
        inputs, targets = torch.randn(2, 4, 5)
        schedule.step(inputs) if mesh["pipeline"].get_local_rank() == 0 else schedule.step(target=targets)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor().detach().clone() for parameter in stage.parameters()]


def train_and_be_refused(rank, size):
    import fsdp_cpp
    from torch.distributed.fsdp import fully_shard as torch_fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "shard"))
    initial, expected, ours = (
        train_stage(shard, mesh, steps)
        for shard, steps in ((torch_fully_shard, 0), (torch_fully_shard, 2), (fsdp_cpp.fully_shard, 2))
    )
    for before, one, other in zip(initial, expected, ours, strict=True):
        assert not torch.equal(before, other)
        # FSDP2 adds up microbatches before it reduces, this package afterwards.
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-7)
    del initial, expected
    fsdp_cpp.install()
    with pytest.raises(NotImplementedError, match=r"fully_shard\.state\(FSDPSequential\) is not supported"):
        train_stage(fsdp_cpp.fully_shard, mesh, 1)


def test_stages_of_two_ranks_each_train_as_with_fsdp2():
    run_ranks(4, train_and_be_refused)

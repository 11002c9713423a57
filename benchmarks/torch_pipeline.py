"""The like of pipeline.cpp with torch.distributed.pipelining and FSDP2: the same model, numbers and micro-batches.

Usage: torch_pipeline.py SCHEDULE STAGES_PER_RANK DATA_PARALLEL MICRO_BATCHES BLOCKS WIDTH ROWS STEPS, on each rank with
the environment of torchrun. Prints the same JSON, without bubble and passes."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, ScheduleZBVZeroBubble, get_schedule_class

from torch_chain import make_chain, numbers


def stages_of(rank, ranks, stages_per_rank, schedule_class):
    """In turns, or in a V: the first and the last stage on rank 0."""
    if schedule_class is ScheduleZBVZeroBubble:
        return [rank, 2 * ranks - 1 - rank]
    return range(rank, ranks * stages_per_rank, ranks)


def make_stages(mesh, ranks, stages_per_rank, blocks, width, schedule_class):
    count = ranks * stages_per_rank
    for index in stages_of(mesh["pp"].get_local_rank(), ranks, stages_per_rank, schedule_class):
        chain = make_chain(width, blocks * index // count, blocks * (index + 1) // count)
        if mesh["dp"].size() > 1:
            for block in chain:
                fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
            fully_shard(chain, mesh=mesh["dp"], reshard_after_forward=False)
        yield PipelineStage(chain, index, count, torch.device("cpu"), group=mesh["pp"].get_group())


def train(name, stages_per_rank, data_parallel, micro_batches, blocks, width, rows, steps):
    """Losses of each micro-batch and seconds of each step, on each rank of a process group."""
    ranks = dist.get_world_size() // data_parallel
    mesh = init_device_mesh("cpu", (ranks, data_parallel), mesh_dim_names=("pp", "dp"))
    schedule_class = get_schedule_class(name)
    stages = list(make_stages(mesh, ranks, stages_per_rank, blocks, width, schedule_class))
    schedule = schedule_class(
        stages[0] if issubclass(schedule_class, PipelineScheduleSingle) else stages,
        micro_batches,
        loss_fn=lambda output, _: (output * output).mean() / micro_batches,
        scale_grads=False,
    )
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=0.05)
    result = {"losses": [], "seconds": []}
    target = torch.zeros(micro_batches * rows)
    for step in range(steps):
        dist.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad()
        losses = []
        inputs = []
        if any(stage.is_first for stage in stages):
            place = mesh["dp"].get_local_rank()
            inputs = [
                torch.cat([numbers((rows, width), 0.11, step + 0.3 * i + 0.7 * place) for i in range(micro_batches)])
            ]
        if any(stage.is_last for stage in stages):
            schedule.step(*inputs, target=target, losses=losses)
        else:
            schedule.step(*inputs)
        optimizer.step()
        dist.barrier()
        result["seconds"].append(time.perf_counter() - begun)
        result["losses"].append([loss.item() for loss in losses])
    return result


def main(*setting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(json.dumps(train(*setting)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

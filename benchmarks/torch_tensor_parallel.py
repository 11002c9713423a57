"""The like of tensor_parallel.cpp with torch.distributed.tensor.parallel and FSDP2: the same model and numbers.

Usage: torch_tensor_parallel.py TENSOR_PARALLEL BLOCKS WIDTH ROWS STEPS [SEQUENCE_PARALLEL], on each rank with the
environment of torchrun.
Prints the same JSON, without bytes."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from torch_chain import make_chain, numbers


def split(chain, mesh, sequence_parallel):
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence_parallel:
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
    for block in chain:
        parallelize_module(block, mesh["tp"], plan)
        if mesh["dp"].size() > 1:
            fully_shard(block, mesh=mesh["dp"])
    if mesh["dp"].size() > 1:
        fully_shard(chain, mesh=mesh["dp"])


def forward_of_parts(chain, samples, mesh):
    """Of the rank's rows; returns all."""
    mine = chain(samples.chunk(mesh.size())[mesh.get_local_rank()])
    return DTensor.from_local(mine, mesh, [Shard(0)]).redistribute(placements=[Replicate()]).to_local()


def train(tensor_parallel, blocks, width, rows, steps, sequence_parallel=0):
    """Losses and seconds of each step, on each rank of a process group."""
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // tensor_parallel, tensor_parallel), mesh_dim_names=("dp", "tp")
    )
    chain = make_chain(width, 0, blocks)
    split(chain, mesh, sequence_parallel)
    optimizer = torch.optim.SGD(chain.parameters(), lr=0.05)
    result = {"losses": [], "seconds": []}
    for step in range(steps):
        dist.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad()
        samples = numbers((rows, width), 0.11, step + 0.7 * mesh["dp"].get_local_rank())
        hidden = forward_of_parts(chain, samples, mesh["tp"]) if sequence_parallel else chain(samples)
        loss = (hidden * hidden).mean()
        loss.backward()
        optimizer.step()
        result["losses"].append(loss.item())
        dist.barrier()
        result["seconds"].append(time.perf_counter() - begun)
    return result


def main(*setting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(json.dumps(train(*setting)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

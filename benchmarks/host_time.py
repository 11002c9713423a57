#!/usr/bin/env python3
"""Host time that one unit adds to forward and backward in PyTorch's FSDP1, FSDP2 and DDP.

The like of host_time.cpp: the same block, a fake process group of 8 ranks, one thread. On a GPU (without DDP) the time
ends when backward returns, not when the device is done, which is waited for between steps. Prints one JSON object a
line.
"""

import argparse
import json
import statistics
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from torch_block import Block

RANKS = 8
WIDTH = 32
ROWS = 4
FEW, MANY = 4, 12  # units; what one adds is the slope between


def blocks(count, device):
    torch.manual_seed(0)
    return nn.Sequential(*(Block(WIDTH, 2 * WIDTH) for _ in range(count))).to(device)


def fsdp1(count, device, use_orig_params):
    def policy(module, recurse, nonwrapped_numel):
        return recurse or isinstance(module, Block)

    return FullyShardedDataParallel(
        blocks(count, device), auto_wrap_policy=policy, use_orig_params=use_orig_params, device_id=device
    )


def fsdp2(count, device):
    model = blocks(count, device)
    mesh = dist.init_device_mesh(device.type, (RANKS,))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def all_reduce(_, bucket):
    """What DDP does by itself; the fake group's own futures carry no result, so DDP must be handed one that does."""
    dist.all_reduce(bucket.buffer().div_(RANKS), async_op=True)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def ddp(count, device):
    model = DistributedDataParallel(blocks(count, device))
    model.register_comm_hook(None, all_reduce)
    return model


VARIANTS = {
    "plain": blocks,
    "DDP": ddp,
    "FSDP1, flat parameters": lambda count, device: fsdp1(count, device, False),
    "FSDP1, use_orig_params": lambda count, device: fsdp1(count, device, True),
    "FSDP2": fsdp2,
}


def time_step(model, x):
    start = time.perf_counter()
    model(x).sum().backward()
    seconds = time.perf_counter() - start
    if x.is_cuda:
        torch.cuda.synchronize()
    model.zero_grad()
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", 0)
    variants = {name: make for name, make in VARIANTS.items() if name != "DDP" or options.device == "cpu"}
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    models = {(name, count): make(count, device) for name, make in variants.items() for count in (FEW, MANY)}
    x = torch.randn(ROWS, WIDTH, device=device)
    times = {key: [] for key in models}
    for step in range(options.steps + 20):
        for key, model in models.items():
            seconds = time_step(model, x)
            if step >= 20:
                times[key].append(seconds)
    per_unit = {
        name: (statistics.median(times[name, MANY]) - statistics.median(times[name, FEW])) / (MANY - FEW) * 1e3
        for name in variants
    }
    for name, milliseconds in per_unit.items():
        if name != "plain":
            print(
                json.dumps(
                    {"variant": name, "plain_ms": per_unit["plain"], "added_ms": milliseconds - per_unit["plain"]}
                )
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

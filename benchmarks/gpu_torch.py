#!/usr/bin/env python3
"""PyTorch's side of benchmarks/gpu.py: training steps of the same decoder under FSDP1, FSDP2 or nothing.

Usage: gpu_torch.py SETTINGS, the JSON object that gpu.cpp takes; prints one, on rank 0.
"""

import json
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from torch_transformer import DecoderBlock, Transformer

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def join_group(settings, device):
    if settings["group"] == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=settings["fake_ranks"], store=FakeStore())
    else:
        dist.init_process_group(settings["group"], device_id=device if device.type == "cuda" else None)


def fsdp1(model, dtype, device, use_orig_params):
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({DecoderBlock}),
        device_id=device,
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32),
        use_orig_params=use_orig_params,
    )


def fsdp2(model, dtype, device):
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def make_model(settings, device):
    variant, dtype = settings["variant"], DTYPES[settings["dtype"]]
    sizes = {name: settings[name] for name in ("layers", "width", "heads", "vocabulary")}
    model = Transformer(**sizes, device=device, dtype=dtype if variant == "plain" else torch.float32)
    if variant == "plain":
        return model
    if variant == "FSDP2":
        return fsdp2(model, dtype, device)
    return fsdp1(model, dtype, device, {"FSDP1, flat parameters": False, "FSDP1, use_orig_params": True}[variant])


@torch.no_grad()
def tame(model, optimizer):
    """New finite values: in some versions the fake group's reductions leave gradients as the memory happened to be, and
    NaNs, which come of that, are quicker to multiply."""

    def local(tensor):
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor

    for parameter in model.parameters():
        local(parameter).normal_(std=0.02)
        for name, state in optimizer.state[parameter].items():
            if name != "step":
                local(state).zero_()


class Clock:
    def __init__(self, device):
        self.synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self.host_ms, self.step_ms = [], []

    def step(self, model, optimizer, tokens, keep):
        self.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        model(tokens).backward()
        returned = time.perf_counter()
        optimizer.step()
        self.synchronize()
        if keep:
            self.host_ms.append(1e3 * (returned - start))
            self.step_ms.append(1e3 * (time.perf_counter() - start))


COUNTERS = {"retries": "num_alloc_retries", "device_allocs": "num_device_alloc"}
PEAKS = {"peak_allocated": "allocated_bytes.all.peak", "peak_reserved": "reserved_bytes.all.peak"}


def memory(device, before=None):
    """What the device's allocator says, counters less those of `before`."""
    if device.type != "cuda":
        return dict.fromkeys((*PEAKS, *COUNTERS))
    stats = torch.cuda.memory_stats(device)
    counters = {name: stats[key] - (before[name] if before else 0) for name, key in COUNTERS.items()}
    return {**{name: stats[key] for name, key in PEAKS.items()}, **counters}


def measure(settings, device):
    model = make_model(settings, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    tokens = torch.randint(settings["vocabulary"], (settings["batch"], settings["length"]), device=device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of the whole model
    clock, before = Clock(device), None
    for step in range(settings["warm_up"] + settings["steps"]):
        if step == settings["warm_up"]:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            before = memory(device)
        clock.step(model, optimizer, tokens, step >= settings["warm_up"])
        if settings["group"] == "fake" and settings["variant"] != "plain":
            tame(model, optimizer)
    return {"host_ms": clock.host_ms, "step_ms": clock.step_ms, **memory(device, before), "torch": torch.__version__}


def main():
    settings = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    local_rank = 0 if settings["group"] == "fake" else int(os.environ["LOCAL_RANK"])
    device = torch.device(settings["device"], local_rank) if settings["device"] != "cpu" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    join_group(settings, device)
    result = measure(settings, device)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    if settings["group"] != "fake":
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

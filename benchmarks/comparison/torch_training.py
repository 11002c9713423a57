"""PyTorch's side of a training run: one rank, with the environment of torchrun.

main(SIDE, JOB, COUNTED_MEMORY): side DDP, FSDP1, FSDP2 or PyTorch (nothing around the model); the job file; the library
that counts tensors' memory. Prints one JSON object, as compare_ours does. torch_server.py calls it.

Settings are the best that PyTorch's documentation has for the side: fused AdamW; DDP with buckets as gradients and a
static graph; FSDP1 with use_orig_params and, by default, prefetching in both directions and the limit; FSDP2 with units
as FSDP1's, which prefetches in backward by itself, and in forward as the job says.
"""

import ctypes
import json
import time
import warnings
from pathlib import Path

import safetensors
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from comparison import models, process_use
from comparison.jobs import DDP, FSDP1, FSDP2, PLAIN, read_job

PREFETCHES = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}


class Unsupported(Exception):
    """What the job asks for is not there on this side."""


def mesh_of(job):
    if job.sharding_factor is None:
        return init_device_mesh("cpu", (dist.get_world_size(),))
    groups = dist.get_world_size() // job.sharding_factor
    return init_device_mesh("cpu", (groups, job.sharding_factor), mesh_dim_names=("replicate", "shard"))


def whole_model(side, model, job):
    if job.strategy != "no_shard" or job.dtype != "fp32":
        raise Unsupported(f"{side} shards nothing and has no mixed precision of its own")
    recompute_blocks(model, job, models.block_classes(model))
    return model


def leave_plain(model, job):
    if dist.get_world_size() > 1:
        raise Unsupported("PyTorch with nothing around the model is one process")
    return whole_model(PLAIN, model, job)


def wrap_ddp(model, job):
    return DistributedDataParallel(
        whole_model(DDP, model, job), gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False
    )


def wrap_fsdp1(model, job):
    classes = models.block_classes(model)
    strategy = "_HYBRID_SHARD_ZERO2" if job.strategy == "hybrid_shard_zero2" else job.strategy.upper()
    precision = MixedPrecision(torch.bfloat16, torch.float32) if job.dtype == "bf16" else None
    wrapped = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy(classes),
        sharding_strategy=ShardingStrategy[strategy],
        device_mesh=mesh_of(job) if job.sharding_factor else None,
        mixed_precision=precision,
        use_orig_params=True,
        backward_prefetch=PREFETCHES[job.backward_prefetch],
        forward_prefetch=job.forward_prefetch,
        limit_all_gathers=job.limit_all_gathers,
        device_id=torch.device("cpu"),
    )
    recompute_blocks(wrapped, job, classes)  # inside the units, so that a recomputation finds them gathered
    return wrapped


def wrap_fsdp2(model, job):
    if job.strategy == "no_shard":
        raise Unsupported("FSDP2 has no strategy without shards")
    if job.backward_prefetch != "pre":
        raise Unsupported("FSDP2 always gathers the next unit before it computes a unit's gradients")
    classes = models.block_classes(model)
    blocks = [module for module in model.modules() if type(module) in classes]
    recompute_blocks(model, job, classes)
    common, reshard = dict(mesh=mesh_of(job)), job.strategy in ("full_shard", "hybrid_shard")
    if job.dtype == "bf16":
        for module in model.modules():  # in fp32, as their statistics; FSDP1 does so by itself
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                fully_shard(module, reshard_after_forward=reshard, **common)
        common["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in blocks:
        fully_shard(block, reshard_after_forward=reshard, **common)
    embeddings = models.large_outside(model, blocks)
    for module in embeddings:  # the head, which backward begins with, stays gathered
        fully_shard(module, reshard_after_forward=reshard and module is not embeddings[-1], **common)
    fully_shard(model, reshard_after_forward=False, **common)
    if job.forward_prefetch:
        for block, following in zip(blocks, blocks[1:]):
            block.set_modules_to_forward_prefetch([following])
    return model


def recompute_blocks(model, job, classes):
    if job.checkpointing:
        apply_activation_checkpointing(model, check_fn=lambda module: type(module) in classes)


WRAPPERS = {DDP: wrap_ddp, FSDP1: wrap_fsdp1, FSDP2: wrap_fsdp2, PLAIN: leave_plain}


class Samples:
    """The samples that the rank trains on, step by step; they begin again when all were used."""

    def __init__(self, job):
        with safetensors.safe_open(job.samples, "pt") as file:
            names = file.keys()
            self.tensors = {name: file.get_tensor(name) for name in names}
        self.batch = job.batch

    def of(self, step):
        size, rank = dist.get_world_size(), dist.get_rank()
        count = len(next(iter(self.tensors.values())))
        begin = (step % (count // (self.batch * size)) * size + rank) * self.batch
        return {name: tensor[begin : begin + self.batch] for name, tensor in self.tensors.items()}


class Training:
    def __init__(self, side, job):
        self.job, self.samples = job, Samples(job)
        plain = models.load(job.model)
        self.parameters = sum(parameter.numel() for parameter in plain.parameters())
        self.tables = getattr(plain, "tables", None)  # of DHEN: SplitTables, which update their rows
        self.model = WRAPPERS[side](plain, job)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=job.learning_rate, weight_decay=0.0, fused=True)
        self.losses = []

    def step(self, number):
        """What each part of the step takes."""
        cpu_before = time.process_time()
        parts, whole = {}, process_use.PartClock()
        self.optimizer.zero_grad()
        loss = timed(parts, "forward", lambda: models.loss_of(self.model, self.samples.of(number)))
        timed(parts, "backward", loss.backward)
        timed(parts, "clip", self.clip)
        timed(parts, "optimizer", self.update)
        parts["step"] = {**whole.elapsed(), "cpu": time.process_time() - cpu_before}
        self.losses.append(loss.item())
        return parts

    def update(self):
        self.optimizer.step()
        if self.tables is not None:
            self.tables.step()

    def clip(self):
        if isinstance(self.model, FullyShardedDataParallel):
            return self.model.clip_grad_norm_(self.job.clip_grad_norm)
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job.clip_grad_norm)


def timed(parts, name, part):
    clock = process_use.PartClock()
    result = part()
    parts[name] = clock.elapsed()
    return result


def run(side, job, memory):
    training, steps, network_before = Training(side, job), [], 0
    for step in range(job.warm_up + job.steps):
        if step == job.warm_up:
            memory.counted_memory_reset_peak()
            process_use.reset_peak_resident()
            dist.barrier()
            network_before = process_use.network_bytes_sent()
            dist.barrier()
        parts = training.step(step)
        if step >= job.warm_up:
            steps.append(parts)
    dist.barrier()
    network = process_use.network_bytes_sent() - network_before
    return {
        "rank": dist.get_rank(),
        "losses": training.losses,
        "steps": steps,
        "parameters": training.parameters,
        "allocated": memory.counted_memory_peak(),
        "resident": process_use.peak_resident_bytes(),
        "network_bytes": network,
    }


def limit_memory(job):
    """Of the process, beside what it has once it has trained something small; None without a limit. So interpreter,
    libraries, imports of a first step, threads with their stacks, and connections are not charged to the model."""
    if job.memory_limit is None:
        return None
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.0, fused=True)
    layer(torch.ones(2, 8)).sum().backward()
    dist.all_reduce(layer.weight.grad)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    return process_use.limit_memory(job.memory_limit)


def main(arguments):
    side, job = arguments[0], read_job(json.loads(Path(arguments[1]).read_text()))
    warnings.filterwarnings("ignore")
    torch.set_num_threads(job.threads)
    dist.init_process_group("gloo")
    memory = ctypes.CDLL(arguments[2])
    memory.counted_memory_peak.restype = ctypes.c_int64
    base = limit_memory(job)
    memory.counted_memory_begin()
    print(json.dumps({**run(side, job, memory), "base": base}), flush=True)
    dist.barrier()  # the process is then ended without destructors, of whose order PyTorch warns

#!/usr/bin/env python3
"""Peak memory of a training step on one rank: fsdp.cpp beside PyTorch's FSDP1 and FSDP2, and beside what it has to be.

A model of an embedding, blocks of two linear layers, and a head; FULL_SHARD, AdamW, fp32. All tensors of a process are
counted, by one allocator on both sides, over three steps after three. What it has to be:

shards of parameters, gradients and AdamW's means + the root (embedding, head) and two blocks, gathered, with their
gradient buffers + activations (the plain model's peak without parameters and their gradients)
"""

import argparse
import ctypes
import json
import pathlib
import sys

import ranks as rank_processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
OURS = ("transformer policy", "auto_units", "keep_memory", "no limit")
TORCH = ("FSDP1", "FSDP2")
SIZES = ("layers", "width", "vocabulary", "batch", "length")


def torch_worker(options):
    """The same model under PyTorch's FSDP1 or FSDP2; prints the peak on rank 0."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from torch_block import Block

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(options.vocabulary, options.width)
            self.head = nn.Linear(options.width, options.vocabulary)
            self.blocks = nn.ModuleList(Block(options.width, 4 * options.width) for _ in range(options.layers))

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    memory = ctypes.CDLL(str(options.build_dir / "libcounted_memory.so"))
    memory.counted_memory_peak.restype = ctypes.c_int64
    memory.counted_memory_begin()
    model = Model()
    if options.worker == "FSDP2":
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), use_orig_params=True
        )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(options.vocabulary, (options.batch, options.length))
    for step in range(6):
        if step == 3:
            memory.counted_memory_reset_peak()
        optimizer.zero_grad()
        model(tokens).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(json.dumps({"peak": memory.counted_memory_peak()}))
    dist.barrier()
    dist.destroy_process_group()


def measure(options, ranks):
    sizes = [getattr(options, name) for name in SIZES]
    results = {}
    for number, variant in enumerate((*OURS, *TORCH)):
        if variant in OURS:
            command = [options.build_dir / "memory", variant, *sizes]
        else:
            command = [
                sys.executable,
                __file__,
                "--worker",
                variant,
                "--build-dir",
                options.build_dir,
                *(f"--{name}={size}" for name, size in zip(SIZES, sizes)),
            ]
        results[variant] = rank_processes.run(command, ranks, 29700 + 10 * ranks + number)
    return results


def report(results):
    parts = {name: size for name, size in results[OURS[0]].items() if name != "peak"}
    needed = sum(parts.values())
    mib = {name: f"{size / 2**20:.1f}" for name, size in parts.items()}
    lines = [
        f"Shards {mib['shards']}, root {mib['root']}, two units {mib['units']}, activations {mib['activations']}: "
        f"{needed / 2**20:.1f} MiB.",
        "",
        "| variant | peak MiB | of what it has to be |",
        "| --- | ---: | ---: |",
    ]
    lines += [
        f"| {variant} | {result['peak'] / 2**20:.1f} | {100 * result['peak'] / needed:.1f} % |"
        for variant, result in results.items()
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    for name, size in zip(SIZES, (24, 512, 2048, 4, 64)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        torch_worker(options)
        return
    for ranks in options.ranks:
        print(f"### {ranks} ranks\n\n{report(measure(options, ranks))}\n")


if __name__ == "__main__":
    main()

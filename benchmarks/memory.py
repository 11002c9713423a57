#!/usr/bin/env python3
"""Peak memory of a training step on one rank: fsdp.cpp beside PyTorch's FSDP1 and FSDP2, and beside what it has to be.

A model of an embedding, blocks of two linear layers, and a head; FULL_SHARD, AdamW, fp32. All tensors of a process are
counted, by one allocator on both sides, over three steps after three. What it has to be:

shards of parameters, gradients and AdamW's means + the root (embedding, head) and two blocks, gathered, with their gradient
buffers + activations (the plain model's peak without parameters and their gradients)
"""
import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OURS = ("transformer policy", "auto_units", "gradients given back", "no limit")
TORCH = ("FSDP1", "FSDP2")
SIZES = ("layers", "width", "vocabulary", "batch", "length")


def run(command, ranks, port):
    """Starts the command on each rank; what rank 0 prints, read as JSON."""
    processes = []
    for rank in range(ranks):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                       "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                       "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([*map(str, command)], env=environment, text=True, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE))
    outputs = [process.communicate() for process in processes]
    for rank, process in enumerate(processes):
        if process.returncode:
            sys.exit(f"error: rank {rank} of {' '.join(map(str, command))} failed:\n{outputs[rank][1]}")
    return json.loads(outputs[0][0])


def torch_worker(options):
    """The same model under PyTorch's FSDP1 or FSDP2; prints the peak on rank 0."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(options.vocabulary, options.width)
            self.head = nn.Linear(options.width, options.vocabulary)
            self.blocks = nn.ModuleList(Block(options.width) for _ in range(options.layers))

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
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"),
                                         use_orig_params=True)
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
            command = [sys.executable, __file__, "--worker", variant, "--build-dir", options.build_dir,
                       *(f"--{name}={size}" for name, size in zip(SIZES, sizes))]
        results[variant] = run(command, ranks, 29700 + 10 * ranks + number)
    return results


def report(results):
    parts = {name: size for name, size in results[OURS[0]].items() if name != "peak"}
    needed = sum(parts.values())
    mib = {name: f"{size / 2**20:.1f}" for name, size in parts.items()}
    lines = [f"Shards {mib['shards']}, root {mib['root']}, two units {mib['units']}, activations {mib['activations']}: "
             f"{needed / 2**20:.1f} MiB.", "", "| variant | peak MiB | of what it has to be |", "| --- | ---: | ---: |"]
    lines += [f"| {variant} | {result['peak'] / 2**20:.1f} | {100 * result['peak'] / needed:.1f} % |"
              for variant, result in results.items()]
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

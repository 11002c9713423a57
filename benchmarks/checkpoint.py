#!/usr/bin/env python3
"""Saving and loading a training state: fsdp.cpp beside torch.distributed.checkpoint (DCP), and beside plain writes.

A row of linear layers with AdamW's two means for each parameter, fp32, sharded over the ranks (FULL_SHARD, FSDP2). Each
turn runs both sides, which save, load and save asynchronously; a number is the median over the turns of the slowest
rank, with the smallest and largest in brackets. Both sides sync files before a save has ended; ours checksums what it
writes and reads. Files are read from the page cache.
"""

import argparse
import ctypes
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import ranks as rank_processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHAT = ("save", "load", "async_save, stall", "async_save, all")


def memory_of(name):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    raise KeyError(name)


def cost_of(part):
    """Seconds, the most that is needed beside what there is, and what `part` returns."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before is not there for the taking
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, start = memory_of("VmRSS"), time.perf_counter()
    result = part()
    return time.perf_counter() - start, max(memory_of("VmHWM") - before, 0), result


def torch_worker(options):
    """The same state under FSDP2, saved and loaded by DCP; prints as checkpoint_bench does."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(options.layers)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(1, options.width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state, path = {"model": model_state, "optimizer": optimizer_state}, options.folder / "dcp"
    results = {name: {"seconds": [], "memory": []} for name in WHAT}

    def note(name, seconds, memory):
        results[name]["seconds"].append(seconds)
        results[name]["memory"].append(memory)

    def clear():
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(path, ignore_errors=True)
        dist.barrier()

    for _ in range(options.turns):
        clear()
        note("save", *cost_of(lambda: dcp.save(state, checkpoint_id=path))[:2])
        dist.barrier()
        note("load", *cost_of(lambda: dcp.load(state, checkpoint_id=path))[:2])
        clear()
        stall, memory, future = cost_of(lambda: dcp.async_save(state, checkpoint_id=path))
        rest, memory_of_rest, _ = cost_of(future.result)
        note("async_save, stall", stall, memory)
        note("async_save, all", stall + rest, max(memory, memory_of_rest))
    clear()
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, results)
    if dist.get_rank() == 0:
        print(json.dumps({"ranks": gathered}), flush=True)
    dist.barrier()
    os._exit(0)  # DCP's thread is still there, and would end the process with an error


def slowest(results, name, kind):
    """Of each turn."""
    return [max(turn) for turn in zip(*(rank[name][kind] for rank in results["ranks"]))]


def measure(options, ranks, folder):
    """Turns of both sides, one after the other, several times over."""
    ours, theirs = [], []
    sizes = [options.layers, options.width]
    for turn in range(options.turns):
        port = 29800 + 20 * ranks + 2 * turn
        ours.append(rank_processes.run([options.build_dir / "checkpoint_bench", folder, *sizes, 2], ranks, port))
        command = [sys.executable, __file__, "--worker", "--folder", folder, "--turns", 2]
        command += ["--layers", options.layers, "--width", options.width]
        theirs.append(rank_processes.run(command, ranks, port + 1))
    return ours, theirs


def collected(runs, name, kind):
    return [value for run in runs for value in slowest(run, name, kind)]


def spread(values, form="{:.3f}"):
    return f"{form.format(statistics.median(values))} ({form.format(min(values))}–{form.format(max(values))})"


def report(options, ranks, ours, theirs):
    mib = ours[0]["bytes"] / 2**20
    plain, copy = (collected(ours, name, "seconds") for name in ("plain write and fsync", "copy"))
    lines = [
        f"{ranks} rank(s), {mib:.0f} MiB a rank. Plain write and fsync: {spread(plain)} s, "
        f"{mib / statistics.median(plain):.0f} MiB/s a rank. Plain copy: {spread(copy)} s.",
        "",
        "| | fsdp.cpp, s | MiB/s a rank | extra MiB | DCP, s | MiB/s a rank | extra MiB "
        "| DCP / fsdp.cpp | fsdp.cpp / plain |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in WHAT:
        own, other = (collected(runs, name, "seconds") for runs in (ours, theirs))
        memory = [f"{statistics.median(collected(runs, name, 'memory')) / 2**20:.0f}" for runs in (ours, theirs)]
        middle, other_middle = statistics.median(own), statistics.median(other)
        base = {"save": plain, "async_save, all": plain, "async_save, stall": copy}.get(name)
        against = f"{middle / statistics.median(base):.2f}" if base else "–"
        lines.append(
            f"| {name} | {spread(own)} | {mib / middle:.0f} | {memory[0]} | {spread(other)} | "
            f"{mib / other_middle:.0f} | {memory[1]} | {other_middle / middle:.2f} | {against} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, help="where to write; default: a temporary folder")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        torch_worker(options)
        return
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(report(options, ranks, *measure(options, ranks, folder)), "\n", flush=True)


if __name__ == "__main__":
    main()

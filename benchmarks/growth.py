#!/usr/bin/env python3
"""How costs grow with a model's size: each at three sizes, and the exponent from the middle size to the largest.

A cost in proportion to the size has the exponent 1. That of a step of a model that is not sharded ("plain step") is
above 1 as well, because large models do not fit the processor's caches; as much is allowed to all costs of the engine,
beyond a limit of 1.2. An exponent above that is measured again, as often as --repeats says; one that stays above it is
a failure (exit status 1). tests/growth counts steps of the library instead, without caches and without noise.
Engine jobs are those of growth_jobs.h: one rank of four over a communicator that exchanges nothing.
"""

import argparse
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ranks as rank_processes

ROOT = Path(__file__).resolve().parents[1]
SIZES = (1000, 4000, 16000)
SIZES_OF_FILES = (1000, 10_000, 30_000)
CHECKPOINT_RANKS = (1, 4)
LIMIT = 1.2
FEW_MS = 5  # of the largest size: below it, chance decides
PLAIN = "plain step"


def least(runs):
    """The smallest figure of each name."""
    return {name: min(run[name] for run in runs) for name in runs[0]}


def exponent(costs, sizes):
    """From the middle size to the largest."""
    return math.log(costs[2] / costs[1]) / math.log(sizes[2] / sizes[1])


class Programs:
    """The programs of a build, each run a few times in a folder of its own; milliseconds."""

    def __init__(self, build, turns):
        self.build, self.turns = build, turns

    def job(self, name, size, ranks=1, folder=None):
        variables = {"FSDP_GROWTH_FOLDER": folder} if folder else {}
        runs = []
        for _ in range(self.turns):
            said = rank_processes.outputs(
                [self.build / "growth", name, size], ranks, 29600 + os.getpid() % 300, variables=variables
            )
            of_ranks = [json.loads(text) for text in said]
            runs.append({what: max(one[what] for one in of_ranks) for what in of_ranks[0]})
        return least(runs)

    def command(self, *words):
        times = []
        for _ in range(self.turns):
            begin = time.perf_counter()
            subprocess.run([self.build / "fsdp", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
            times.append((time.perf_counter() - begin) * 1e3)
        return min(times)


def write_safetensors(path, tensors):
    header, end = {}, 0
    for i in range(tensors):
        name = f"model.layers.{i // 384}.mlp.experts.{i % 384 // 3}.{('gate', 'up', 'down')[i % 3]}_proj.weight"
        header[name] = {"dtype": "F32", "shape": [8], "data_offsets": [end, end + 32]}
        end += 32
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def checkpoint_costs(programs, parameters, folder):
    """Saving, loading, and what the program does with the folder that four ranks have saved."""
    costs = {}
    for ranks in CHECKPOINT_RANKS:
        saved = folder / f"checkpoint-{ranks}"
        for what, cost in programs.job("checkpoint", parameters, ranks, saved).items():
            costs[f"{what}, {ranks} rank{'s' if ranks > 1 else ''}"] = cost
    costs["inspect --verify"] = programs.command("inspect", "--verify", saved)
    costs["convert --to dcp"] = programs.command("convert", saved, folder / "dcp", "--to", "dcp", "--force")
    costs["inspect --verify, DCP"] = programs.command("inspect", "--verify", folder / "dcp")
    costs["DCP's own reading"] = dcp_reading(folder / "dcp", programs.turns)
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "mixtral"}')
    write_safetensors(model / "model.safetensors", parameters)
    costs["inspect --verify, safetensors"] = programs.command("inspect", "--verify", model)
    return costs


def dcp_reading(folder, turns):
    """PyTorch's own reader of the same folder, metadata and values, into memory that is there."""
    program = """if True:
        import sys, time, torch
        import torch.distributed.checkpoint as dcp
        reader = dcp.FileSystemReader(sys.argv[1])
        state = {name: torch.empty(entry.size) for name, entry in reader.read_metadata().state_dict_metadata.items()
                 if hasattr(entry, "size")}
        begin = time.perf_counter()
        dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
        print((time.perf_counter() - begin) * 1e3)
    """
    return min(
        float(
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", program, folder], check=True, text=True, stdout=subprocess.PIPE
            ).stdout
        )
        for _ in range(turns)
    )


def engine_tables(programs, only):
    names = subprocess.run([programs.build / "growth"], check=True, text=True, stdout=subprocess.PIPE).stdout
    for name in names.splitlines():
        if name != "checkpoint" and only in name:
            yield name, SIZES, lambda size, name=name: programs.job(name, size)


def file_table(programs, only, folder):
    if only in "checkpoint":
        yield "checkpoint", SIZES_OF_FILES, lambda size: checkpoint_costs(programs, size, folder)


class Limit:
    """The largest exponent of a cost: beyond that of plain steps, where such have been measured."""

    def __init__(self):
        self.allowance = 0.0

    def too_steep(self, costs, sizes):
        plain = {PLAIN, "first " + PLAIN} & set(costs)
        self.allowance = max([self.allowance] + [exponent(costs[name], sizes) - 1 for name in plain])
        return {
            name
            for name in costs
            if name not in plain and costs[name][2] >= FEW_MS and exponent(costs[name], sizes) > LIMIT + self.allowance
        }


def measure(run, sizes, repeats, limit):
    """{what: [milliseconds at each size]}, and those names that stay too steep."""
    costs = {}
    for _ in range(1 + repeats):
        for place, size in enumerate(sizes):
            for name, cost in run(size).items():
                of_sizes = costs.setdefault(name, [math.inf] * len(sizes))
                of_sizes[place] = min(of_sizes[place], cost)
        if not (steep := limit.too_steep(costs, sizes)):
            return costs, set()
    return costs, steep


def print_table(title, sizes, costs):
    print(f"\n| {title} | " + " | ".join(f"{size:,}" for size in sizes) + " | exponent |")
    print("| --- |" + " ---: |" * (len(sizes) + 1))
    for name, of_sizes in costs.items():
        print(
            f"| {name} | "
            + " | ".join(f"{cost:.3g} ms" for cost in of_sizes)
            + f" | {exponent(of_sizes, sizes):.2f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--only", default="", help="jobs with this in their name")
    parser.add_argument("--turns", type=int, default=2, help="runs of each job at each size; the fastest counts")
    parser.add_argument("--repeats", type=int, default=2, help="how often a steep job is measured again")
    options = parser.parse_args()
    programs = Programs(options.build_dir.resolve(), options.turns)
    failed = []
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        limit = Limit()
        for title, sizes, run in (
            *engine_tables(programs, options.only),
            *file_table(programs, options.only, Path(folder)),
        ):
            costs, steep = measure(run, sizes, options.repeats, limit)
            print_table(title, sizes, costs)
            failed += [f"{title}: {name}" for name in sorted(steep)]
    for name in failed:
        print(f"FAILED {name}: grows faster than the size")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

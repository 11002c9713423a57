#!/usr/bin/env python3
"""A step of a pipeline of two stages: one process, this library over shared memory and over Gloo, and
torch.distributed.pipelining, in turns. Each rank has one thread. Also compares the measured bubble with the simulator's
at the measured costs."""

import argparse
import collections
import json
import pathlib
import re
import statistics
import subprocess
import sys

import ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent
PORT = 29655
KINDS = ("forward", "backward", "input_gradient", "weight_gradient")


def run(command, count, variables=None):
    return [json.loads(output) for output in ranks.outputs(command, count, PORT, variables=variables, timeout=600)]


def variants_of(build, schedule, stages_per_rank):
    ours, torch = [build / "pipeline_bench"], [sys.executable, ROOT / "benchmarks/torch_pipeline.py"]
    return {
        "one process": (ours, "plain", 1, 1, {}),
        "here": (ours, schedule, stages_per_rank, 2, {}),
        "torch.distributed.pipelining": (torch, schedule, stages_per_rank, 2, {}),
    }


def simulated_bubble(build, schedule, stages_per_rank, micro_batches, results):
    """With the mean costs of this run."""
    mean = {kind: statistics.mean(result[kind] for result in results) for kind in KINDS}
    if mean["input_gradient"] == 0:  # a backward pass is I and W together
        mean["input_gradient"] = mean["weight_gradient"] = mean["backward"] / 2
    costs = ",".join(str(mean[kind]) for kind in ("forward", "input_gradient", "weight_gradient"))
    words = [build / "fsdp", "schedule", schedule, "--ranks", 2, "--stages-per-rank", stages_per_rank]
    words += ["--micro-batches", micro_batches, "--costs", costs]
    text = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout
    return float(re.search(r"bubble ([\d.]+) %", text)[1]) / 100


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--stages-per-rank", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    build = arguments.build_dir.resolve()
    print("| Micro-batches | One process | Here | Ratio | torch.distributed.pipelining | Ratio | Bubble | Simulated |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for micro_batches in arguments.micro_batches:
        seconds, bubbles, simulated = collections.defaultdict(list), [], []
        for _ in range(arguments.turns):
            for name, (command, schedule, stages, count, variables) in variants_of(
                build, arguments.schedule, arguments.stages_per_rank
            ).items():
                sizes = [arguments.blocks, arguments.width, arguments.rows, arguments.steps]
                results = run([*command, schedule, stages, 1, micro_batches, *sizes], count, variables)
                seconds[name] += results[0]["seconds"][1:]
                if name == "here":
                    bubbles.append(results[0]["bubble"])
                    simulated.append(
                        simulated_bubble(build, schedule, arguments.stages_per_rank, micro_batches, results)
                    )
        one, here, torch = (statistics.median(seconds[name]) for name in seconds)
        print(
            f"| {micro_batches} | {one * 1e3:.0f} ms | {here * 1e3:.0f} ms | {one / here:.2f} | {torch * 1e3:.0f} ms "
            f"| {torch / here:.2f} | {statistics.median(bubbles):.3f} | {statistics.median(simulated):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

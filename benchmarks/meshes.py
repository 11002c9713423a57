#!/usr/bin/env python3
"""A step of a small Llama (8 layers of width 256, 8 sequences of 512 tokens, fp32, AdamW) on meshes of one, two and
four ranks of one thread, in turns: tokens per second over shared memory; the most bytes that a rank sends in a step,
and the peak of tensors of the rank with the most, over Gloo, where all buffers are tensors."""

import argparse
import collections
import json
import pathlib
import statistics

import ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent
PORT = 29657
TOKENS = 8 * 512

# Name: ranks of pipeline, data and tensor parallelism, and whether the sequence is split.
MESHES = {
    "one process": (1, 1, 1, 0),
    "dp 2": (1, 2, 1, 0),
    "tp 2": (1, 1, 2, 0),
    "tp 2, sequence split": (1, 1, 2, 1),
    "pp 2": (2, 1, 1, 0),
    "dp 4": (1, 4, 1, 0),
    "dp 2, tp 2": (1, 2, 2, 0),
    "dp 2, tp 2, sequence split": (1, 2, 2, 1),
    "pp 2, dp 2": (2, 2, 1, 0),
    "pp 2, tp 2": (2, 1, 2, 0),
    "pp 2, tp 2, sequence split": (2, 1, 2, 1),
}


def run(build, mesh, communicator, steps):
    words = [build / "meshes", *mesh, communicator, steps]
    pipeline, data, tensor, _ = mesh
    return [json.loads(text) for text in ranks.outputs(words, pipeline * data * tensor, PORT, timeout=600)]


def loss_of(results, mesh, step):
    """The mean over all sequences; the ranks of a tensor-parallel group have the same losses."""
    _, data, tensor, _ = mesh
    return sum(sum(result["losses"][step]) for result in results) / (data * tensor)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--meshes", nargs="+", choices=MESHES, default=list(MESHES))
    arguments = parser.parse_args()
    build = arguments.build_dir.resolve()
    seconds, losses, counted = collections.defaultdict(list), {}, {}
    for name in arguments.meshes:
        counted[name] = run(build, MESHES[name], "gloo", 2)
    for _ in range(arguments.turns):
        for name in arguments.meshes:
            results = run(build, MESHES[name], "shm", arguments.steps)
            seconds[name] += results[0]["seconds"][1:]
            losses[name] = loss_of(results, MESHES[name], arguments.steps - 1)
    print("| Mesh | Tokens/s | Peak of tensors | MB sent a step | Loss of the last step |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in arguments.meshes:
        peak = max(result["peak_bytes"] for result in counted[name]) / 2**20
        sent = max(result["bytes_sent"] for result in counted[name]) / 1e6
        speed = TOKENS / statistics.median(seconds[name])
        print(f"| {name} | {speed:.0f} | {peak:.0f} MiB | {sent:.1f} | {losses[name]:.6f} |")


if __name__ == "__main__":
    main()

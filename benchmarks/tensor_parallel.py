#!/usr/bin/env python3
"""A step of two ranks that split the weights of a model: one process, this library over shared memory, and
torch.distributed.tensor.parallel over Gloo, in turns. Each rank has one thread."""

import argparse
import collections
import json
import pathlib
import statistics
import sys

import ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent
PORT = 29656


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sequence-parallel", action="store_true", help="split the rows between the layers, too")
    arguments = parser.parse_args()
    ours = [arguments.build_dir.resolve() / "tensor_parallel_bench"]
    torch = [sys.executable, ROOT / "benchmarks/torch_tensor_parallel.py"]
    variants = {"one process": (ours, 0, 1), "here": (ours, 2, 2), "torch": (torch, 2, 2)}
    print("| Rows | One process | Here | Ratio | torch | Ratio | MB sent a step |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for rows in arguments.rows:
        seconds, sent = collections.defaultdict(list), 0
        for _ in range(arguments.turns):
            for name, (command, degree, count) in variants.items():
                words = [*command, degree, arguments.blocks, arguments.width, rows, arguments.steps]
                words += [int(arguments.sequence_parallel and degree > 1)]
                result = json.loads(ranks.outputs(words, count, PORT, timeout=600)[0])
                seconds[name] += result["seconds"][1:]
                sent = result.get("bytes_sent", sent) if name == "here" else sent
        one, here, other = (statistics.median(seconds[name]) for name in variants)
        print(
            f"| {rows} | {one * 1e3:.1f} ms | {here * 1e3:.1f} ms | {one / here:.2f} | {other * 1e3:.1f} ms "
            f"| {other / here:.2f} | {sent / arguments.steps / 1e6:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prints a step's time with the flat cut and with the cut by rows, over Gloo and over shared memory (shard_cut.cpp)."""

import argparse
import json
import statistics
from pathlib import Path

import ranks

ROOT = Path(__file__).resolve().parent.parent
# (blocks, width): many small units, few large ones.
CHAINS = [(24, 64), (6, 768)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--port", type=int, default=29541)
    options = parser.parse_args()
    print("| blocks x width | over | flat, ms | rows, ms | ratio |\n| --- | --- | --- | --- | --- |")
    for blocks, width in CHAINS:
        for backend in ("gloo", "shm"):
            command = [options.build_dir / "shard_cut", backend, blocks, width, options.steps]
            times = json.loads(ranks.outputs(command, options.ranks, options.port)[0])
            flat, rows = statistics.median(times["flat"]), statistics.median(times["rows"])
            print(f"| {blocks} x {width} | {backend} | {flat:.2f} | {rows:.2f} | {rows / flat:.2f} |", flush=True)


if __name__ == "__main__":
    main()

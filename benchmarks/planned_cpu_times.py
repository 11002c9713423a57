#!/usr/bin/env python3
"""Planned times of steps on the CPUs of this machine beside runs.

For each number of ranks: `fsdp plan --calibrate`, then plans and runs of models that the calibration has not seen, and
of one model with each strategy. The runs of one number of ranks come twice, one after the other, so that the table also
says how far a run is from its own repetition. Writes docs/benchmarks/planned-cpu-times.md.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATUS_OF_VERDICTS = (0, 3, 4)
FIRST_STEPS = 3
STEPS = 12
DIFFERENCE = 0.10  # strategies that differ by less are not ranked


def llama(width, layers, heads, inner, vocabulary, kv_heads=None):
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or heads,
        "vocab_size": vocabulary,
        "pad_token_id": None,
    }


def gpt2(width, layers, heads):
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 512,
        "vocab_size": 6000,
    }


def t5(width, inner, layers, heads):
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": width,
        "d_kv": width // heads,
        "d_ff": inner,
        "num_layers": layers,
        "num_heads": heads,
        "vocab_size": 4096,
        "decoder_start_token_id": 0,
        "feed_forward_proj": "relu",
    }


def deepvit(width, layers, heads, inner):
    return {
        "model_type": "deepvit",
        "architectures": ["DeepViT"],
        "image_size": 64,
        "patch_size": 8,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "num_labels": 100,
        "dropout": 0.0,
        "qkv_bias": False,
    }


def regnet(widths, depths):
    return {
        "model_type": "regnet",
        "architectures": ["RegNetForImageClassification"],
        "hidden_sizes": widths,
        "depths": depths,
        "embedding_size": 32,
        "groups_width": 8,
        "layer_type": "y",
        "num_labels": 100,
    }


MODELS = [
    ("Llama, 4 layers of 256", {"model": llama(256, 4, 8, 704, 8000), "train_batch_size": 4, "max_seq_length": 96}),
    ("Llama, 6 layers of 512", {"model": llama(512, 6, 8, 1408, 8000, 4), "max_seq_length": 192}),
    (
        "Llama, 3 layers of 192, recomputed",
        {
            "model": llama(192, 3, 3, 512, 2000),
            "train_batch_size": 8,
            "max_seq_length": 48,
            "activation_checkpointing": True,
        },
    ),
    (
        "Llama, 5 layers of 320, shard_grad_op",
        {"model": llama(320, 5, 5, 896, 16000), "max_seq_length": 128, "sharding_strategy": "shard_grad_op"},
    ),
    ("GPT-2, 4 layers of 256", {"model": gpt2(256, 4, 4), "train_batch_size": 4, "max_seq_length": 96}),
    (
        "GPT-2, 3 layers of 640, two passes",
        {"model": gpt2(640, 3, 10), "max_seq_length": 200, "gradient_accumulation_steps": 2},
    ),
    ("T5, 3 layers of 256", {"model": t5(256, 640, 3, 4), "train_batch_size": 4, "max_seq_length": 96}),
    ("T5, 2 layers of 512", {"model": t5(512, 1280, 2, 8), "max_seq_length": 64}),
    ("DeepViT, 4 layers of 256", {"model": deepvit(256, 4, 4, 512), "train_batch_size": 8}),
    ("DeepViT, 4 layers of 512", {"model": deepvit(512, 4, 8, 1024)}),
    (
        "RegNet, 96 pixels",
        {"model": regnet([48, 104, 208, 440], [1, 3, 4, 1]), "train_batch_size": 4, "image_size": 96},
    ),
    ("RegNet, wider, 128 pixels", {"model": regnet([64, 144, 320, 784], [1, 2, 3, 1]), "image_size": 128}),
]
COMPARED = {"model": llama(320, 4, 5, 896, 24000), "max_seq_length": 32}
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")


def config_of(keys, dtype):
    usual = {"train_batch_size": 2, "device": "cpu", "check_memory": False, "dataset": "dummy:4000"}
    return {**usual, "dtype": dtype, **keys}


def is_of(strategy, ranks):
    return ranks >= 4 or not strategy.startswith("hybrid")


def with_strategy(strategy):
    groups = {"sharding_factor": 2} if strategy.startswith("hybrid") else {}
    return {**COMPARED, "sharding_strategy": strategy, **groups}


class Bench:
    def __init__(self, program, ranks, folder):
        self.program, self.ranks, self.folder = program, ranks, folder / f"{ranks}-ranks"
        self.folder.mkdir()
        self.cluster = self.folder / f"cpu{ranks}.json"
        self.runs = itertools.count()

    def calibrate(self):
        command = [self.program, "plan", "--calibrate", self.cluster, "--nproc-per-node", str(self.ranks)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def config(self, config, **more):
        path = self.folder / f"config{next(self.runs)}.json"
        path.write_text(json.dumps({**config, **more}))
        return path

    def planned(self, config):
        command = [self.program, "plan", "--json", "--no-changes", "--cluster", self.cluster, self.config(config)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode not in STATUS_OF_VERDICTS:
            sys.exit(result.stderr)
        return json.loads(result.stdout)["time"]["step_seconds"]

    def measured(self, config):
        out = self.folder / f"run{next(self.runs)}"
        steps = FIRST_STEPS + STEPS
        path = self.config(config, output_dir=str(out), max_steps=steps, report_to=["csv"])
        command = [self.program, "train", path, "--nproc-per-node", str(self.ranks)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"})
        with open(out / "metrics.csv", newline="") as file:
            rates = [float(row["samples_per_second"]) for row in csv.DictReader(file)]
        samples = config["train_batch_size"] * self.ranks * config.get("gradient_accumulation_steps", 1)
        return statistics.median(samples / rate for rate in rates[FIRST_STEPS:])

    def rows(self, named_configs):
        """A row: name, planned seconds, and those of two runs that are not next to one another."""
        rows = [[name, self.planned(config)] for name, config in named_configs]
        for _ in range(2):
            for row, (_, config) in zip(rows, named_configs):
                row.append(self.measured(config))
        return rows


def error(planned, first, second):
    return planned / statistics.mean((first, second)) - 1


def table(rows):
    lines = [
        "| Run | Planned | Run | Run again | Planned to run | Run again to run |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, *times in rows:
        milliseconds = " | ".join(f"{1e3 * seconds:.1f} ms" for seconds in times)
        lines.append(f"| {name} | {milliseconds} | {error(*times):+.1%} | {times[2] / times[1] - 1:+.1%} |")
    return "\n".join(lines)


def summary(rows):
    errors = [abs(error(*times)) for _, *times in rows]
    own = [abs(times[2] / times[1] - 1) for _, *times in rows]
    return textwrap.fill(
        f"Mean error {statistics.mean(errors):.1%}, largest {max(errors):.1%}; "
        f"runs differ from their repetition by {statistics.mean(own):.1%} on average and {max(own):.1%} at most.",
        120,
    )


def ranking(rows):
    """How many pairs of strategies that differ have the same order in plans and in runs."""
    right = wrong = 0
    for (_, planned_a, *runs_a), (_, planned_b, *runs_b) in itertools.combinations(rows, 2):
        a, b = statistics.mean(runs_a), statistics.mean(runs_b)
        if max(a, b) / min(a, b) < 1 + DIFFERENCE:
            continue
        if (planned_a < planned_b) == (a < b):
            right += 1
        else:
            wrong += 1
    return (
        f"Of {right + wrong} pairs that differ by more than {DIFFERENCE:.0%}, the plans order {right} as the runs do."
    )


def section(bench, dtypes):
    ranks = f"{bench.ranks} rank{'s' if bench.ranks > 1 else ''}"
    parts = [f"## {ranks}", f"`{bench.calibrate().strip()}`"]
    parts[-1] = parts[-1].replace(str(bench.folder) + "/", "")
    for dtype in dtypes:
        rows = bench.rows([(name, config_of(keys, dtype)) for name, keys in MODELS])
        parts += [f"### {ranks}, {dtype}", table(rows), summary(rows)]
    if bench.ranks > 1:
        strategies = [strategy for strategy in STRATEGIES if is_of(strategy, bench.ranks)]
        rows = bench.rows([(name, config_of(with_strategy(name), dtypes[0])) for name in strategies])
        parts += [f"### {ranks}, strategies", table(rows), ranking(rows)]
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks/planned-cpu-times.md")
    arguments = parser.parse_args()
    introduction = (
        "Written by `benchmarks/planned_cpu_times.py`. For each number of ranks, `fsdp plan --calibrate` has measured "
        f"this machine ({os.cpu_count()} processors); no model of the tables is among those that it trains. A run is "
        f"`fsdp train` over shared memory, the median of {STEPS} steps after {FIRST_STEPS}. The runs of a table came "
        "twice, all of them once and then all of them again."
    )
    with tempfile.TemporaryDirectory() as folder:
        benches = [Bench(arguments.build_dir / "fsdp", ranks, Path(folder)) for ranks in arguments.ranks]
        sections = [section(bench, arguments.dtypes) for bench in benches]
    parts = ["# Planned and measured steps on CPUs", textwrap.fill(introduction, 120), *sections]
    arguments.out.write_text("\n\n".join(parts) + "\n")
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures fsdp.cpp beside PyTorch's DDP, FSDP1 and FSDP2 and prints the tables of docs/benchmarks.md.

All variants take turns, several times over; a number is the median over the turns, in brackets the smallest and
largest.
"""

import argparse
import collections
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import collectives

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python/support"))

LLAMA = dict(
    vocab_size=8192,
    hidden_size=384,
    intermediate_size=1024,
    num_hidden_layers=6,
    num_attention_heads=6,
    num_key_value_heads=6,
    max_position_embeddings=256,
    tie_word_embeddings=False,
)
TRAINING = dict(
    dtype="fp32",
    max_seq_length=128,
    train_batch_size=4,
    learning_rate=3e-4,
    clip_grad_norm=1.0,
    wrap_policy="transformer",
    seed=0,
)
WARM_UP_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Variant:
    group: str  # variants of one group do the like
    name: str
    ours: bool = False
    method: str = ""
    prefetch: bool = False
    settings: tuple = ()  # pairs of a config key and its value, of ours

    @property
    def strategy(self):
        return self.group if self.group != "one process" else "no_shard"


VARIANTS = (
    Variant("full_shard", "fsdp.cpp", ours=True),
    Variant(
        "full_shard",
        "fsdp.cpp, no prefetch",
        ours=True,
        settings=(("backward_prefetch", "none"), ("forward_prefetch", False)),
    ),
    Variant("full_shard", "fsdp.cpp, backward_post", ours=True, settings=(("backward_prefetch", "backward_post"),)),
    Variant("full_shard", "fsdp.cpp, no limit", ours=True, settings=(("limit_all_gathers", False),)),
    Variant("full_shard", "fsdp.cpp, one communicator", ours=True, settings=(("one_communicator", True),)),
    Variant("full_shard", "fsdp.cpp, auto_units", ours=True, settings=(("wrap_policy", "auto_units"),)),
    Variant("full_shard", "FSDP1, no prefetch", method="fsdp1"),
    Variant("full_shard", "FSDP1, default prefetch", method="fsdp1", prefetch=True),
    Variant("full_shard", "FSDP2", method="fsdp2"),
    Variant("shard_grad_op", "fsdp.cpp", ours=True),
    Variant("shard_grad_op", "FSDP1, no prefetch", method="fsdp1"),
    Variant("shard_grad_op", "FSDP2, reshard_after_forward=False", method="fsdp2"),
    Variant("no_shard", "fsdp.cpp", ours=True),
    Variant("no_shard", "DDP", method="ddp"),
    Variant("no_shard", "FSDP1", method="fsdp1"),
)
ALONE = Variant("one process", "PyTorch without a wrapper", method="single")


@dataclasses.dataclass
class Result:
    tokens_per_second: float
    peak_memory_bytes: int
    losses: list


def call(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode:
        sys.exit(f"error: {' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def spread(values, form):
    middle = form.format(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({form.format(min(values))}–{form.format(max(values))})"


def table(header, rows):
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def host_time(build_dir, turns):
    """Milliseconds that one unit adds, by variant, one number a turn."""
    added, plain = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(turns):
        for side, command in (
            ("C++", [build_dir / "host_time"]),
            ("Python", [sys.executable, ROOT / "benchmarks/host_time.py"]),
        ):
            rows = [json.loads(line) for line in call(*command).splitlines()]
            plain[side].append(rows[0]["plain_ms"])
            for row in rows:
                added[row["variant"]].append(row["added_ms"])
    base = statistics.median(added["fsdp.cpp full_shard"])
    rows = [
        (name, spread(values, "{:.4f}"), f"{statistics.median(values) / base:.1f}") for name, values in added.items()
    ]
    notes = ", ".join(f"{side} {spread(values, '{:.3f}')} ms" for side, values in plain.items())
    return (
        table(("variant", "added ms per unit", "times fsdp.cpp full_shard"), rows)
        + f"\n\nThe block itself, forward and backward: {notes}."
    )


def run_ours(build_dir, config_path, ranks):
    call(build_dir / "fsdp", "train", "--config-path", config_path, "--nproc-per-node", ranks)
    metrics = Path(json.loads(config_path.read_text())["output_dir"]) / "metrics.jsonl"
    steps = [row for row in map(json.loads, metrics.read_text().splitlines()) if "loss" in row]
    speed = statistics.median(row["tokens_per_second"] for row in steps[WARM_UP_STEPS:])
    return Result(speed, max(row["peak_memory_bytes"] for row in steps), [row["loss"] for row in steps])


def run_torch(variant, config_path, ranks):
    command = [
        sys.executable,
        ROOT / "benchmarks/torch_train.py",
        "--config-path",
        config_path,
        "--method",
        variant.method,
        "--ranks",
        ranks,
        *(["--prefetch"] if variant.prefetch else []),
    ]
    run = json.loads(call(*command).splitlines()[-1])
    tokens = ranks * TRAINING["train_batch_size"] * TRAINING["max_seq_length"]
    return Result(
        tokens / statistics.median(run["step_seconds"][WARM_UP_STEPS:]), run["peak_memory_bytes"], run["losses"]
    )


def measure(variant, build_dir, folder, ranks, steps):
    config = dict(
        TRAINING,
        model_path=str(folder / "model"),
        dataset=str(folder / "tokens.bin"),
        max_steps=steps,
        sharding_strategy=variant.strategy,
        output_dir=str(folder / "run"),
    )
    if variant.ours:
        config["comm_backend"] = "gloo"  # as the others
    config.update(variant.settings)
    config_path = folder / "config.json"
    config_path.write_text(json.dumps(config))
    result = run_ours(build_dir, config_path, ranks) if variant.ours else run_torch(variant, config_path, ranks)
    print(f"{ranks} ranks, {variant.group}, {variant.name}: {result.tokens_per_second:.0f} tokens/s", file=sys.stderr)
    return result


def training_table(results, group_base):
    rows = []
    for variant, runs in results.items():
        speeds = [run.tokens_per_second for run in runs]
        ratio = (
            statistics.median(group_base[variant.group]) / statistics.median(speeds)
            if variant.group in group_base
            else None
        )
        rows.append(
            (
                variant.group,
                variant.name,
                spread(speeds, "{:.0f}"),
                f"{ratio:.2f}" if ratio else "–",
                f"{max(run.peak_memory_bytes for run in runs) / 2**20:.0f}",
                f"{runs[0].losses[0]:.6f} → {runs[0].losses[-1]:.6f}",
            )
        )
    return table(
        ("strategy", "variant", "tokens/s", "fsdp.cpp / variant", "peak MiB per rank", "loss, first → last"), rows
    )


def training(build_dir, folder, world_sizes, turns, steps):
    """A table for each number of ranks."""
    prepare(folder)
    results = {ranks: collections.defaultdict(list) for ranks in world_sizes}
    for _ in range(turns):
        for ranks in world_sizes:
            for variant in (*VARIANTS, *((ALONE,) if ranks == 1 else ())):
                results[ranks][variant].append(measure(variant, build_dir, folder, ranks, steps))
    parts = []
    for ranks, by_variant in results.items():
        ours = {
            variant.group: [run.tokens_per_second for run in runs]
            for variant, runs in by_variant.items()
            if variant.name == "fsdp.cpp"
        }
        parts.append(f"#### {ranks} rank{'s' if ranks > 1 else ''}\n\n{training_table(by_variant, ours)}")
    return "\n\n".join(parts)


def prepare(folder):
    import torch_fsdp_reference as reference

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model/config.json").exists():
        reference.make_llama(folder / "model", **LLAMA)
    reference.make_tokens(folder / "tokens.bin", 128 * 1024, LLAMA["vocab_size"])


def machine():
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{os.cpu_count()} processors ({names[0] if names else platform.machine()})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, default=Path(os.environ.get("BUILD_DIR", ROOT / "build")))
    parser.add_argument("--only", choices=("host_time", "collectives", "training"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=13, help=f"training steps of a run; the first {WARM_UP_STEPS} warm up"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "output/benchmarks", help="where runs and results go")
    options = parser.parse_args()
    if options.steps <= WARM_UP_STEPS:
        parser.error(f"--steps must be more than {WARM_UP_STEPS}")
    options.folder.mkdir(parents=True, exist_ok=True)
    parts = [f"Measured on {machine()}, {options.turns} turns."]
    if options.only in (None, "host_time"):
        parts.append("### Host time of a unit\n\n" + host_time(options.build_dir, options.turns))
    if options.only in (None, "collectives"):
        parts.append("### Collectives of one host\n\n" + collectives.report(options.build_dir, options.ranks))
    if options.only in (None, "training"):
        parts.append(
            "### Training a small Llama\n\n"
            + training(options.build_dir, options.folder, options.ranks, options.turns, options.steps)
        )
    text = "\n\n".join(parts) + "\n"
    (options.folder / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

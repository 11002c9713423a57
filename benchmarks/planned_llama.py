#!/usr/bin/env python3
"""Plans Llama-3.1-8B (benchmarks/llama-3.1-8b.json) on four GPUs with 1024 tokens a sample: all combinations of
strategy, offloading, dtype of the shards, batch, recomputation, limiter and loss. Writes them as a page, with what each
choice changes.

The bytes that follow from the model's sizes by arithmetic are computed here a second time; a plan that differs from
them is an error. `--check` plans some rows again and compares them with the page, and writes nothing.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = "benchmarks/llama-3.1-8b.json"
TOKENS, RANKS = 1024, 4
STATUS_OF_VERDICTS = (0, 3, 4)
GIB, MIB = 2**30, 2**20

CHOICES = {
    "sharding_strategy": ("full_shard", "shard_grad_op", "no_shard"),
    "cpu_offload": (False, True),
    "master_dtype": ("fp32", "bf16"),
    "train_batch_size": (1, 4),
    "activation_checkpointing": (False, True),
    "limit_all_gathers": (True, False),
    "fused_loss": (False, True),
}
# What is compared: a key, its values before and after, and where, if not everywhere.
COMPARED = [
    ("sharding_strategy", "full_shard", "shard_grad_op", {}),
    ("sharding_strategy", "full_shard", "no_shard", {}),
    ("cpu_offload", False, True, {}),
    ("master_dtype", "fp32", "bf16", {}),
    ("train_batch_size", 1, 4, {"activation_checkpointing": False}),
    ("train_batch_size", 1, 4, {"activation_checkpointing": True}),
    ("activation_checkpointing", False, True, {"train_batch_size": 1}),
    ("activation_checkpointing", False, True, {"train_batch_size": 4}),
    ("limit_all_gathers", True, False, {"sharding_strategy": "full_shard"}),
    ("fused_loss", False, True, {"train_batch_size": 1}),
    ("fused_loss", False, True, {"train_batch_size": 4}),
]
COLUMNS = list(itertools.product((True, False), (False, True)))  # limit_all_gathers, fused_loss
CHECKED = [("full_shard", False, "fp32", 4, False), ("full_shard", True, "bf16", 1, True)]


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one plan, in bytes and seconds."""

    verdict: str
    device: int  # all memory of a device
    host: int  # of one rank
    hosts: int  # of all ranks
    seconds: float
    engine: dict  # peaks by category
    peak: dict  # bytes by kind at the peak of the device's tensors
    pinned: int


def plan(program, cluster, values):
    command = [program, "plan", "--json", "--no-changes", "--model", MODEL, "--cluster", cluster]
    settings = {**dict(zip(CHOICES, values, strict=True)), "max_seq_length": TOKENS}
    for key, value in settings.items():
        command += ["--set", f"{key}={str(value).lower()}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode not in STATUS_OF_VERDICTS:
        sys.exit(f"{command}: {result.stderr}")
    document = json.loads(result.stdout)
    device, host = document["memory"]["device"], document["memory"]["host"]
    return Figures(
        verdict=device["verdict"],
        device=device["total"],
        host=host["pinned"] + host["pageable"] + host["process"],
        hosts=host["per_host"],
        seconds=document["time"]["step_seconds"],
        engine={entry["name"]: entry["peak"] for entry in document["engine"]},
        peak=device["peak"]["by_kind"],
        pinned=host["pinned"],
    )


def plan_all(options, combinations):
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        plans = pool.map(lambda values: plan(options.build_dir / "fsdp", options.cluster, values), combinations)
        return dict(zip(combinations, plans, strict=True))


def gib(count):
    return f"{count / GIB:.2f}"


def cell(figures):
    """Memory, and the step's time if the run fits."""
    if figures.verdict == "does not fit":
        return f"**{gib(figures.device)}** | –"
    mark = " (tight)" if figures.verdict == "tight" else ""
    return f"{gib(figures.device)}{mark} | {figures.seconds:.3f}"


# ------------------------------------------------------------------ what follows from the sizes


@dataclasses.dataclass(frozen=True)
class Sizes:
    layer: int
    embedding: int
    parameters: int


def sizes():
    model = json.loads((ROOT / MODEL).read_text())
    width, inner = model["hidden_size"], model["intermediate_size"]
    key_value = width // model["num_attention_heads"] * model["num_key_value_heads"]
    layer = 2 * width * width + 2 * width * key_value + 3 * width * inner + 2 * width
    embedding = model["vocab_size"] * width
    return Sizes(layer, embedding, model["num_hidden_layers"] * layer + 2 * embedding + width)


def power_of_two(count):
    return 1 << (count - 1).bit_length()


def anchors(plans):
    """Rows: what, bytes by arithmetic, bytes of the plan."""
    of = sizes()
    rows = []
    for dtype, size in (("fp32", 4), ("bf16", 2)):
        for offload in (False, True):
            figures = plans["full_shard", offload, dtype, 4, False, True, False]
            place = " (host)" if offload else ""
            shards = of.parameters * size // RANKS
            where = f"{dtype}, on the {'host' if offload else 'device'}"
            rows += [
                (f"parameter shards, {where}", shards, figures.engine[f"parameter shards{place}"]),
                (f"gradient shards, {where}", shards, figures.engine[f"gradient shards{place}"]),
                # Each parameter also has its count of steps, a number of its own.
                (f"AdamW's means, {where}", 2 * shards, figures.engine["optimizer state"] // MIB * MIB),
            ]
    offloaded = plans["full_shard", True, "fp32", 4, False, True, False]
    blocks = 32 * power_of_two(of.layer) + 2 * power_of_two(of.embedding) + power_of_two(4096)
    rows.append(("pinned blocks of parameters and gradients, fp32, on the host", 2 * blocks, offloaded.pinned))
    window = 2 * (of.embedding + of.layer + 4096)
    gathered = plans["full_shard", False, "fp32", 4, False, True, False].engine["unsharded parameters"]
    return [*rows, ("gathered at a time: a layer, the embedding or head, and the root", window, gathered)]


def check_anchors(plans):
    rows = anchors(plans)
    for what, computed, planned in rows:
        if what.startswith("AdamW"):
            computed = computed // MIB * MIB
        if computed != planned:
            sys.exit(f"{what}: {computed} bytes by arithmetic, {planned} by the plan")
    return rows


# ------------------------------------------------------------------ what each choice changes


@dataclasses.dataclass(frozen=True)
class Effect:
    """Of one change, over all pairs of rows that differ in nothing else."""

    key: str
    text: str  # "`cpu_offload` false → true"
    device: list  # bytes more
    host: list
    seconds: list  # ratios, where both fit and shards are on the device


def text_of(value):
    return str(value).lower()


def effect(plans, key, before, after, where):
    keys = list(CHOICES)
    place = keys.index(key)
    pairs = [
        (values, figures, plans[(*values[:place], after, *values[place + 1 :])])
        for values, figures in plans.items()
        if values[place] == before and all(values[keys.index(other)] == value for other, value in where.items())
    ]
    timed = [
        (figures, changed)
        for values, figures, changed in pairs
        if "does not fit" not in (figures.verdict, changed.verdict)
        and (key == "cpu_offload" or not values[keys.index("cpu_offload")])
    ]
    places = "".join(f", with `{other}` {text_of(value)}" for other, value in where.items())
    return Effect(
        key,
        f"`{key}` {text_of(before)} → {text_of(after)}{places}",
        [changed.device - figures.device for _, figures, changed in pairs],
        [changed.host - figures.host for _, figures, changed in pairs],
        [changed.seconds / figures.seconds for figures, changed in timed],
    )


def spread(values, shown):
    low, middle, high = min(values), statistics.median(values), max(values)
    return shown(middle) if low == high else f"{shown(middle)} ({shown(low)} to {shown(high)})"


def in_gib(count):
    return f"{count / GIB:+.2f}"


def as_ratio(value):
    return f"{value:.2f}"


def effects_table(found):
    lines = ["| change | device, GiB | host of a rank, GiB | step, ratio |", "| --- | --- | --- | --- |"]
    for one in found:
        lines.append(
            f"| {one.text} | {spread(one.device, in_gib)} | {spread(one.host, in_gib)} | "
            f"{spread(one.seconds, as_ratio)} |"
        )
    return lines


def effects_paragraph(found, plans):
    by_memory = sorted(found, key=lambda one: -abs(statistics.median(one.device)))
    by_time = sorted(
        (one for one in found if one.key not in ("train_batch_size", "cpu_offload")),
        key=lambda one: -abs(math.log(statistics.median(one.seconds))),
    )
    fits = sum(figures.verdict == "fits" for figures in plans.values())
    memory = ", ".join(f"{one.text} ({in_gib(statistics.median(one.device))} GiB)" for one in by_memory[:4])
    least = by_memory[-1]
    offloading = next(one for one in found if one.key == "cpu_offload")
    time = ", ".join(f"{one.text} (× {as_ratio(statistics.median(one.seconds))})" for one in by_time[:3])
    return (
        f"{fits} of the {len(plans)} combinations fit. By the median over all pairs that differ in nothing else, a "
        f"device's memory depends most on {memory}, and least on {least.text} "
        f"({in_gib(statistics.median(least.device))} GiB). Offloading makes a step "
        f"{as_ratio(statistics.median(offloading.seconds))} times as long, since the optimizer then runs on the "
        "host, timed by a guessed bandwidth of 20 GB/s for each rank. With shards on the device, the time of a step "
        f"with as many samples depends most on {time}. The host's memory depends on strategy, offloading and "
        "dtype alone."
    )


# ------------------------------------------------------------------ beside an estimate by hand


def by_hand(plans):
    figures = plans["full_shard", True, "bf16", 4, False, True, False]
    of, engine, peak = sizes(), figures.engine, figures.peak
    logits = 4 * TOKENS * 128256 * 4
    rows = [
        (
            "gathered parameters, on the device",
            "< 1 GB: a quarter of two units",
            f"{gib(engine['unsharded parameters'])} GiB",
            f"A gathered unit is whole: {2 * of.layer / MIB:.0f} MiB a layer, {2 * of.embedding / MIB:.0f} MiB the "
            "embedding and the head each; a quarter of it is copied to the device before",
        ),
        (
            "gradients, on the device",
            "4 GB, for a short time",
            f"{gib(engine['gradient buffers'])} GiB",
            "Of the units whose gradients are being reduced; the shards of gradients go to the host, too: "
            f"{gib(engine['gradient shards (host)'])} GiB",
        ),
        (
            "AdamW's means, on the device",
            "16 GB, in fp32",
            "0",
            "They are where the shards are and in their dtype: "
            f"{gib(engine['optimizer state'])} GiB in bf16 on the host",
        ),
        (
            "activations, on the device",
            "4–6 GB",
            f"{gib(peak['activations'])} GiB, and {gib(peak['temporaries'])} GiB of temporaries",
            f"At the peak. One tensor of logits in fp32 has {gib(logits)} GiB; loss and its backward keep several",
        ),
        (
            "all of the device",
            "22–24 GB",
            f"{gib(figures.device)} GiB",
            "With CUDA, NCCL, and what the allocator reserves",
        ),
        (
            "host of a rank",
            "5–6 GB",
            f"{gib(figures.host)} GiB",
            f"Shards and gradients are pinned, in blocks of powers of two ({gib(figures.pinned)} GiB), and AdamW's "
            "means are here",
        ),
    ]
    lines = ["| | by hand | planned | why |", "| --- | --- | --- | --- |"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


# ------------------------------------------------------------------ the page


def row_of(plans, row):
    strategy, _, _, batch, recomputes = row
    cells = " | ".join(cell(plans[(*row, *column)]) for column in COLUMNS)
    return f"| {strategy} | {batch} | {'yes' if recomputes else 'no'} | {cells} |"


def host_row(plans, offload, dtype, strategy):
    rows = [figures for values, figures in plans.items() if values[:3] == (strategy, offload, dtype)]
    per_rank = sorted({gib(figures.host) for figures in rows})
    together = sorted({gib(figures.hosts) for figures in rows})
    return (
        f"| {'yes' if offload else 'no'} | {dtype} | {strategy} | {' to '.join(per_rank)} | {' to '.join(together)} |"
    )


def tables(plans):
    lines = []
    for offload, dtype in itertools.product((False, True), ("fp32", "bf16")):
        place = "with `cpu_offload`" if offload else "on the device"
        lines += [
            f"### Shards in {dtype}, {place}",
            "",
            "| strategy | batch | recomputation | limiter | step | limiter, fused loss | step | no limiter | step | "
            "no limiter, fused loss | step |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for strategy, batch, recomputes in itertools.product(CHOICES["sharding_strategy"], (1, 4), (False, True)):
            lines.append(row_of(plans, (strategy, offload, dtype, batch, recomputes)))
        lines.append("")
    return lines


def host_table(plans):
    lines = ["| `cpu_offload` | shards | strategy | of a rank | of four ranks |", "| --- | --- | --- | --- | --- |"]
    for offload, dtype in itertools.product((False, True), ("fp32", "bf16")):
        lines += [host_row(plans, offload, dtype, strategy) for strategy in CHOICES["sharding_strategy"]]
    return lines


def wrapped(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def page(plans, options):
    anchor_lines = ["| what | bytes |", "| --- | --- |"]
    anchor_lines += [f"| {what} | {computed:,} |" for what, computed, _ in check_anchors(plans)]
    found = [effect(plans, *change) for change in COMPARED]
    of = sizes()
    lines = [
        "# Llama-3.1-8B on four GPUs, planned",
        "",
        wrapped(
            f"Written by `benchmarks/planned_llama.py`: {len(plans)} plans of `fsdp plan --model {MODEL} --cluster "
            f"{options.cluster}` with `max_seq_length` {TOKENS}, `dtype` bf16 and AdamW. Nothing here is measured. "
            "How to read the figures: [how to plan a run](../planning.md)."
        ),
        "",
        "## What changes the answer most",
        "",
        wrapped(effects_paragraph(found, plans)),
        "",
        *effects_table(found),
        "",
        wrapped(
            "The median over all pairs of rows that differ in this alone, and the range. The ratio of steps counts "
            "pairs that both fit, with shards on the device; a step with batch 4 has four times the samples. The "
            "limiter acts on units that are released after forward, so only with `full_shard`."
        ),
        "",
        "## Device memory and step",
        "",
        wrapped(
            "All of a device's memory in GiB, with CUDA, NCCL and what the allocator reserves, and the time of a step "
            "in seconds. Runs in **bold** do not fit. Recomputation: `activation_checkpointing`. Limiter: "
            "`limit_all_gathers` with 2 gathered units."
        ),
        "",
        *tables(plans),
        "## Host memory",
        "",
        "In GiB, without the data.",
        "",
        *host_table(plans),
        "",
        "## What is exact",
        "",
        wrapped(
            f"The model has {of.parameters:,} parameters: 32 layers of {of.layer:,}, an embedding and a head of "
            f"{of.embedding:,} each, and a norm of 4,096. These bytes of a rank with `full_shard` follow by "
            "arithmetic, and the plans have them to the byte (AdamW's means beside the counts of steps, one for each "
            "parameter):"
        ),
        "",
        *anchor_lines,
        "",
        "## Beside an estimate by hand",
        "",
        wrapped(
            "How far a few lines of arithmetic are off. The run: `full_shard` with `cpu_offload`, shards in bf16, 4 "
            "samples a rank, no recomputation."
        ),
        "",
        *by_hand(plans),
    ]
    return "\n".join(lines) + "\n"


def check(options):
    text = options.output.read_text()
    plans = plan_all(options, [(*row, *column) for row in CHECKED for column in COLUMNS])
    missing = [line for line in (row_of(plans, row) for row in CHECKED) if line not in text]
    for line in missing:
        print(f"{options.output} has no row {line}")
    return 1 if missing else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare some rows with the page; write nothing")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/benchmarks/llama-8b-on-four-gpus.md")
    parser.add_argument("--cluster", default="4xa100-80", help="four GPUs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="plans at a time")
    options = parser.parse_args()
    if options.check:
        sys.exit(check(options))
    plans = plan_all(options, list(itertools.product(*CHOICES.values())))
    options.output.write_text(page(plans, options))


if __name__ == "__main__":
    main()

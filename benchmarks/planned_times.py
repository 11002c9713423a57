#!/usr/bin/env python3
"""Plans beside four published runs on GPUs, and the efficiencies of products that these runs give.

Plans each run with the devices as they are. Then finds the efficiency of products (`matmul_efficiency`) of Ampere and
of Hopper with which the plans come nearest, by least squares of the logarithms, and predicts each run with what the
others give. Writes docs/benchmarks/planned-times.md.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATUS_OF_VERDICTS = (0, 3, 4)
FLASH = "aten::_scaled_dot_product_flash_attention"
# Before the calibration: 0.92 of the best product that was measured.
UNCALIBRATED = {"ampere": 0.80, "hopper": 0.74}
TRIED = (0.5, 0.85)


def mpt(width, layers):
    return {
        "model_type": "mpt",
        "architectures": ["MptForCausalLM"],
        "d_model": width,
        "n_layers": layers,
        "n_heads": width // 128,
        "max_seq_len": 2048,
        "vocab_size": 50368,
    }


LLAMA_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
# torchtitan keeps every other product of a block, the first of them included: those of queries, values, gate and the
# last one; keys, output and up are computed again. The plans keep all products, and none.
WIDTHS = {"q": 4096, "k": 1024, "v": 1024, "o": 4096, "gate": 14336, "up": 14336, "down": 4096}
DEPTHS = {name: 14336 if name == "down" else 4096 for name in WIDTHS}
AGAIN = ("k", "o", "up")
WORK_AGAIN = sum(WIDTHS[n] * DEPTHS[n] for n in AGAIN) / sum(WIDTHS[n] * DEPTHS[n] for n in WIDTHS)
KEPT = 1 - sum(WIDTHS[n] for n in AGAIN) / sum(WIDTHS.values())

MPT_KEYS = {"dtype": "bf16", "max_seq_length": 2048, "clip_grad_norm": 1}
LLAMA_KEYS = {
    "dtype": "bf16",
    "max_seq_length": 8192,
    "train_batch_size": 2,
    "clip_grad_norm": 1,
    "mixed_precision_reduce_dtype": "fp32",
    "activation_checkpointing": True,
}
RUNS = [
    {
        "name": "MPT-7B, micro-batch 6",
        "device": "h100-80",
        "family": "hopper",
        "stack": "llm-foundry",
        "tokens": 10643,
        "model": mpt(4096, 32),
        "keys": [{**MPT_KEYS, "train_batch_size": 6}],
    },
    {
        "name": "MPT-13B, micro-batch 2",
        "device": "h100-80",
        "family": "hopper",
        "stack": "llm-foundry",
        "tokens": 4792,
        "model": mpt(5120, 40),
        "keys": [{**MPT_KEYS, "train_batch_size": 2}],
    },
    {
        "name": "MPT-7B, micro-batch 6, two passes",
        "device": "a100-80",
        "family": "ampere",
        "stack": "llm-foundry",
        "tokens": 4641,
        "model": mpt(4096, 32),
        "keys": [{**MPT_KEYS, "train_batch_size": 6, "gradient_accumulation_steps": 2}],
    },
    {
        "name": "Llama-3.1-8B, batch 2, 8192 tokens, every other product kept",
        "device": "h100-96",
        "family": "hopper",
        "stack": "fsdp2",
        "tokens": 5762,
        "model": LLAMA_8B,
        "keys": [
            {**LLAMA_KEYS, "activation_checkpointing_save_ops": f"aten::mm,{FLASH}"},
            {**LLAMA_KEYS, "activation_checkpointing_save_ops": FLASH},
        ],
    },
]


def cluster_of(run, efficiency, path):
    cluster = {"schema_version": 1, "device": run["device"], "ranks_per_host": 8}
    if efficiency is not None:
        cluster["device_overrides"] = {"matmul_efficiency": efficiency}
    path.write_text(json.dumps(cluster))
    return path


def planned(run, keys, options, folder, efficiency, stack):
    model = folder / "config.json"
    model.write_text(json.dumps(run["model"]))
    cluster = cluster_of(run, efficiency, folder / "cluster.json")
    command = [options.build_dir / "fsdp", "plan", "--json", "--no-changes", "--model", model, "--cluster", cluster]
    command += ["--stack", stack]
    for key, value in keys.items():
        command += ["--set", f"{key}={json.dumps(value) if isinstance(value, bool) else value}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode not in STATUS_OF_VERDICTS:
        sys.exit(f"{run['name']}: {result.stderr}")
    return json.loads(result.stdout)


def figures(plan):
    time = plan["time"]
    return {
        "step": time["step_seconds"],
        **{
            kind: time["by_kind"].get(kind, 0) for kind in ("matrix products", "attention", "memory-bound", "optimizer")
        },
        "communication": time["communication_seconds"],
        "exposed": time["exposed_communication_seconds"],
        "tokens": time["tokens_per_second_per_device"],
        "memory": plan["memory"]["device"]["total"],
    }


def plan_of(run, options, folder, efficiency=None, stack=None):
    """The figures of the run, between those of its two plans if it has two."""
    plans = [figures(planned(run, keys, options, folder, efficiency, stack or run["stack"])) for keys in run["keys"]]
    if len(plans) == 1:
        return plans[0]
    kept, none = plans
    between = {name: kept[name] + WORK_AGAIN * (none[name] - kept[name]) for name in kept}
    between["memory"] = none["memory"] + KEPT * (kept["memory"] - none["memory"])
    between["tokens"] = kept["tokens"] * kept["step"] / between["step"]
    return between


def deviation(run, plan):
    """Of the step's time from the measured one."""
    return run["tokens"] / plan["tokens"] - 1


def fitted(runs, step_seconds):
    """The efficiency with which the runs come nearest. Times are nearly linear in its inverse."""

    def error(efficiency):
        weight = (1 / efficiency - 1 / TRIED[1]) / (1 / TRIED[0] - 1 / TRIED[1])
        return sum(math.log((1 - weight) * step_seconds[i][1] + weight * step_seconds[i][0]) ** 2 for i in runs)

    return min((step / 1000 for step in range(400, 951)), key=error)


def row(cells):
    return "| " + " | ".join(cells) + " |"


def percent(part):
    return f"{100 * part:+.1f} %"


def runs_table(options, folder):
    lines = [
        row(
            [
                "Run, on 8 devices",
                "Device",
                "Stack",
                "Tokens/s of a device, measured",
                "planned",
                "Step's time is off by",
            ]
        ),
        row(["---"] * 6),
    ]
    deviations = []
    for run in RUNS:
        plan = plan_of(run, options, folder)
        deviations.append(deviation(run, plan))
        name, device, stack = run["name"], run["device"], run["stack"]
        lines.append(
            row([name, device, stack, f"{run['tokens']:,}", f"{plan['tokens']:,.0f}", percent(deviations[-1])])
        )
    mean = sum(map(abs, deviations)) / len(deviations)
    return [*lines, "", f"The mean of the deviations' sizes is {100 * mean:.1f} %."]


def parts_table(options, folder):
    """Of the planned step, in milliseconds."""
    kinds = ("step", "matrix products", "attention", "memory-bound", "optimizer", "communication", "exposed")
    lines = [row(["Run", *kinds, "memory"]), row(["---"] * (len(kinds) + 2))]
    for run in RUNS:
        plan = plan_of(run, options, folder)
        times = [f"{1e3 * plan[kind]:.0f}" for kind in kinds]
        lines.append(row([run["name"], *times, f"{plan['memory'] / 2**30:.1f} GiB"]))
    return lines


def left_out_table(options, folder):
    """Each run as the others of its family predict it."""
    ratios = [[1 + deviation(run, plan_of(run, options, folder, e)) for e in TRIED] for run in RUNS]
    lines = [
        row(["Run", "Efficiency by all runs of the family", "without this run", "Step's time is then off by"]),
        row(["---"] * 4),
    ]
    deviations = []
    for i, run in enumerate(RUNS):
        family = [j for j, other in enumerate(RUNS) if other["family"] == run["family"]]
        others = [j for j in family if j != i]
        efficiency = fitted(others, ratios) if others else UNCALIBRATED[run["family"]]
        deviations.append(deviation(run, plan_of(run, options, folder, efficiency)))
        lines.append(row([run["name"], f"{fitted(family, ratios):.3f}", f"{efficiency:.3f}", percent(deviations[-1])]))
    mean = sum(map(abs, deviations)) / len(deviations)
    return [*lines, "", f"The mean of the deviations' sizes is {100 * mean:.1f} %."]


HEAD = """# Plans beside published runs

Written by `benchmarks/planned_times.py`.

The efficiencies of matrix products of A100 and of Hopper, two numbers, were chosen with these four runs, and no others.
Everything else is that of [the cluster and of the stack](../planning.md#other-stacks). The MPTs are LLM Foundry's runs
of 2023 (mosaicml/llm-foundry, scripts/train/benchmarking), with 2048 tokens, ALiBi and no recomputation; the
Llama is torchtitan's eager run, on H100 with 96 GB, 2.4 TB/s and 500 W. It keeps every other product, for which there
is no key: its figures lie between a plan that keeps all products and one that keeps none, by their work. Clipping of
gradients was taken to be on.
"""

LEFT_OUT = """## Each run by the others

The efficiency without this run is that of the other runs of the family. Without its only run, A100 has 0.80: 0.92, a
guess, of the best product that was measured.
"""

PARTS = """## Parts of the planned steps

In milliseconds. Communication overlaps but for the exposed part. The measured memory of the Llama's run is 82.4 GiB.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/benchmarks/planned-times.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [
            HEAD,
            *runs_table(options, folder),
            "",
            LEFT_OUT,
            *left_out_table(options, folder),
            "",
            PARTS,
            *parts_table(options, folder),
        ]
    options.output.write_text("\n".join(parts) + "\n")
    print(options.output.read_text())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Plans beside runs on the GPU at hand: memory and time of a step, for one rank.

Plans each model with `fsdp plan`, trains it with random data, and prints a Markdown table. --device cpu does the same
on the CPU, without times, to try out the script.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from run import ROOT, table

STATUS_OF_VERDICTS = (0, 3, 4)
# The names that LibTorch has for GPUs, and those of `fsdp plan --cluster`.
PLANNED_GPUS = {
    r"\bGB200\b": "gb200",
    r"\bH200$": "h200",
    r"\bB200\b": "b200",
    r"\bH100.*96": "h100-96",
    r"\bH100 80GB HBM3": "h100-80",
    r"\bA100.*40GB": "a100-40",
    r"\bA100.*80GB": "a100-80",
    r"\bRTX 4090$": "rtx4090",
}

LLAMA_1B = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
GPT2_LARGE = {
    "model_type": "gpt2",
    "n_embd": 1280,
    "n_layer": 36,
    "n_head": 20,
    "n_positions": 1024,
    "vocab_size": 50257,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
    "attn_pdrop": 0,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "vocab_size": 50304,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
MPT_1B = {"model_type": "mpt", "d_model": 2048, "n_layers": 16, "n_heads": 16, "vocab_size": 50368}
BF16 = {"dtype": "bf16", "mixed_precision_reduce_dtype": "fp32"}
RUNS = {
    "Llama 1B": {"model": LLAMA_1B, "max_seq_length": 4096, "train_batch_size": 2, **BF16},
    "Llama 1B, recomputed": {
        "model": LLAMA_1B,
        "max_seq_length": 4096,
        "train_batch_size": 4,
        "activation_checkpointing": True,
        **BF16,
    },
    "Llama 1B, fused loss": {
        "model": LLAMA_1B,
        "max_seq_length": 4096,
        "train_batch_size": 2,
        "fused_loss": True,
        **BF16,
    },
    "Llama 1B, fp32": {"model": LLAMA_1B, "max_seq_length": 2048, "train_batch_size": 1, "dtype": "fp32"},
    "GPT-2 large": {"model": GPT2_LARGE, "max_seq_length": 1024, "train_batch_size": 8, **BF16},
    "Qwen 3 with experts": {"model": QWEN3_MOE, "max_seq_length": 2048, "train_batch_size": 4, **BF16},
    "MPT 1B": {"model": MPT_1B, "max_seq_length": 2048, "train_batch_size": 4, **BF16},
}
# Sizes with which a CPU tries out the script.
TINY = {
    "model": {**LLAMA_1B, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128},
    "max_seq_length": 16,
    "train_batch_size": 1,
    "dtype": "fp32",
}


def name_of_gpu():
    """The name of the first GPU for `fsdp plan --cluster`."""
    code = "import torch; print(torch.cuda.get_device_name(0))"
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if said.returncode:
        sys.exit(f"error: torch of {sys.executable} sees no GPU:\n{said.stderr}")
    name = said.stdout.strip()
    for pattern, planned in PLANNED_GPUS.items():
        if re.search(pattern, name):
            return planned
    sys.exit(f"error: `fsdp plan` has no numbers of {name}: --cluster names a file with them (docs/cluster.md)")


def plan_of(options, config, folder):
    command = [options.build_dir / "fsdp", "plan", config, "--cluster", options.cluster, "--json", "--no-changes"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode not in STATUS_OF_VERDICTS:
        sys.exit(f"error: {result.stderr}")
    (folder / "plan.json").write_text(result.stdout)
    return json.loads(result.stdout)


def rows_of_run(options, config, folder):
    """The rows of metrics of a run, or none if it fails. Its output goes to stderr."""
    command = [options.build_dir / "fsdp", "train", config, "--plan", folder / "plan.json"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, check=False)
    except subprocess.TimeoutExpired:
        print(f"did not end in {options.timeout} s", file=sys.stderr)
        return []
    _, begin, comparison = result.stdout.rpartition("planned in")
    print(begin + comparison, result.stderr, file=sys.stderr, flush=True)
    if result.returncode:
        return []
    return [json.loads(line) for line in (folder / "output/metrics.jsonl").read_text().splitlines()]


def percent(planned, measured):
    return f"{100 * (planned / measured - 1):+.1f} %"


def compared(options, keys, folder):
    """The cells of a run: peak of tensors and time of a step, planned and measured."""
    device = {"device": options.device, "dataset": "dummy", "max_steps": options.steps, "save_final": False}
    config = folder / "config.json"
    config.write_text(json.dumps({**device, **keys, "output_dir": str(folder / "output")}))
    plan = plan_of(options, config, folder)
    rows = [row for row in rows_of_run(options, config, folder) if "loss" in row]
    if not rows:
        return ["failed", *[""] * 5]
    on_device = plan["memory"].get("device")
    peak = on_device["allocated"] if on_device else plan["memory"]["host"]["per_host"]
    taken = max(row["peak_memory_bytes"] for row in rows)
    memory = [f"{peak / 2**30:.2f}", f"{taken / 2**30:.2f}", percent(peak, taken)]
    tokens = keys["max_seq_length"] * keys["train_batch_size"]
    seconds = statistics.median(tokens / row["tokens_per_second"] for row in rows[1:])
    if "time" not in plan:
        return [*memory, "–", f"{1e3 * seconds:.1f}", "–"]
    planned = plan["time"]["step_seconds"]
    return [*memory, f"{1e3 * planned:.1f}", f"{1e3 * seconds:.1f}", percent(planned, seconds)]


HEADING = (
    "run",
    "peak of tensors, GiB: planned",
    "measured",
    "plan is off by",
    "step, ms: planned",
    "measured",
    "plan is off by",
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cluster", help="of `fsdp plan`; default: by the name of the GPU")
    parser.add_argument("--runs", metavar="REGEX", default="", help="only runs whose names match")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: the first one is not counted")
    runs = {"tiny": TINY} if options.device == "cpu" else RUNS
    options.cluster = options.cluster or ("1xcpu" if options.device == "cpu" else f"1x{name_of_gpu()}")
    rows = []
    for name, keys in runs.items():
        if not re.search(options.runs, name):
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows.append((name, *compared(options, keys, Path(folder))))
    print(f"`benchmarks/planned_gpu.py`, `--cluster {options.cluster}`, {options.steps} steps, medians:\n")
    print(table(HEADING, rows))
    sys.exit(any("failed" in row for row in rows))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures fsdp.cpp beside PyTorch's FSDP1 and FSDP2 on a GPU: host time of a unit, time and memory of training steps.

All variants take turns, several times over, each in processes of its own. One process stands for a rank of a fake
group, whose collectives copy at most; with --ranks, ranks communicate for real, over NCCL with a GPU for each. Prints
Markdown; each run's numbers go to gpu.jsonl in --folder. On a CPU (--device cpu) there are no numbers of an allocator.
"""

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import ranks as rank_processes
from run import ROOT, spread, table

OURS = {
    "fsdp.cpp, plain LibTorch": "plain",
    "fsdp.cpp": "default",
    "fsdp.cpp, flat": "flat",
    "fsdp.cpp, no prefetch": "no prefetch",
    "fsdp.cpp, `keep_memory = true`": "gradients kept",
}
TORCH = {
    "PyTorch, plain": "plain",
    "FSDP1, flat parameters": "FSDP1, flat parameters",
    "FSDP1, use_orig_params": "FSDP1, use_orig_params",
    "FSDP2": "FSDP2",
}
SIZES = {"layers": 24, "width": 2048, "heads": 16, "vocabulary": 32000, "batch": 4, "length": 1024}


def reason(text):
    """The line that says what went wrong, in what a Python or a C++ process wrote."""
    lines = [line.strip() for line in text.splitlines() if not line.startswith("frame #")]
    return ([line for line in lines if re.search(r"[Ee]rror\b|what\(\):", line)] or lines)[-1]


class Runs:
    """Starts processes, notes what each printed, and goes on when one fails."""

    def __init__(self, options):
        self.options = options
        self.failed = {}  # what went wrong, by table and variant
        self.port = options.port
        options.folder.mkdir(parents=True, exist_ok=True)
        self.record = options.folder / "gpu.jsonl"
        self.record.write_text("")

    def lines(self, key, command, ranks, variables):
        """What rank 0 prints, each line read as JSON; nothing when a rank fails."""
        print(f"{', '.join(key)} …", file=sys.stderr, flush=True)
        self.port += 1
        try:
            output = rank_processes.outputs(
                command, ranks, self.port, variables=variables, timeout=self.options.timeout
            )[0]
        except rank_processes.RankError as error:
            print(error, file=sys.stderr)
            self.failed[key] = reason(str(error))
            return []
        return [self.note(key, json.loads(line)) for line in output.splitlines()]

    def note(self, key, row):
        with open(self.record, "a") as file:
            file.write(json.dumps({"of": key, **row}) + "\n")
        return row


def one_gpu(options):
    """Variables for a process that stands for a rank of a fake group: it must see no more GPUs than it uses."""
    if options.device != "cuda":
        return {}
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}


def host_time(runs, options):
    """A table of what one unit adds, in milliseconds."""
    added, plain = {}, {"C++": [], "Python": []}
    commands = {
        "C++": [options.build_dir / "host_time", options.host_steps, options.device],
        "Python": [
            sys.executable,
            ROOT / "benchmarks/host_time.py",
            "--steps",
            options.host_steps,
            "--device",
            options.device,
        ],
    }
    for _ in range(options.turns):
        for side, command in commands.items():
            rows = runs.lines(("host time", side), command, 1, one_gpu(options))
            plain[side] += [row["plain_ms"] for row in rows[:1]]
            for row in rows:
                added.setdefault(row["variant"], []).append(row["added_ms"])
    if not added:
        return "Nothing was measured."
    base = statistics.median(added.get("fsdp.cpp full_shard", [float("nan")]))
    rows = [
        (name, spread(values, "{:.4f}"), f"{statistics.median(values) / base:.1f}") for name, values in added.items()
    ]
    notes = ", ".join(f"{side} {spread(values, '{:.3f}')} ms" for side, values in plain.items() if values)
    return (
        table(("variant", "added ms per unit", "times fsdp.cpp full_shard"), rows)
        + f"\n\nThe block itself, forward and backward: {notes}."
    )


def measure_steps(runs, options, group, ranks):
    """What each variant's processes printed, a list with an entry for each turn."""
    settings = {
        "device": options.device,
        "group": group,
        "fake_ranks": options.fake_ranks,
        "dtype": options.dtype,
        "warm_up": options.warm_up,
        "steps": options.steps,
        **{name: getattr(options, name) for name in SIZES},
    }
    results = {
        name: []
        for name in (*OURS, *TORCH)
        if re.search(options.variants, name) and (ranks == 1 or "plain" not in name)
    }
    for _ in range(options.turns):
        for name, measured in results.items():
            start = [options.build_dir / "gpu"] if name in OURS else [sys.executable, ROOT / "benchmarks/gpu_torch.py"]
            variant = OURS.get(name) or TORCH[name]
            key = (f"{group}, {ranks} ranks" if group != "fake" else "fake group", name)
            measured += runs.lines(
                key,
                [*start, json.dumps({"variant": variant, **settings})],
                ranks,
                one_gpu(options) if group == "fake" else {},
            )
    return results


def step_table(results):
    """Medians of a run, and over the runs their median, smallest and largest; the largest of what memory they took."""
    rows = []
    for name, measured in results.items():
        if not measured:
            rows.append((name, "failed", *[""] * 5))
            continue
        times = [spread([statistics.median(run[key]) for run in measured], "{:.2f}") for key in ("step_ms", "host_ms")]
        most = [
            None if measured[0][key] is None else max(run[key] for run in measured)
            for key in ("peak_allocated", "peak_reserved", "retries", "device_allocs")
        ]
        memory = [
            "–" if value is None else f"{value / 2**20:.0f}" if place < 2 else value for place, value in enumerate(most)
        ]
        rows.append((name, *times, *memory))
    return table(
        (
            "variant",
            "step, ms",
            "host, until backward returns, ms",
            "peak allocated, MiB",
            "peak reserved, MiB",
            "allocator retries",
            "device allocations",
        ),
        rows,
    )


def machine():
    """What torch says of itself and of GPUs, in a process of its own: nothing of it stays on the device."""
    code = (
        "import json, torch; gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0; print(json.dumps({"
        "'torch': torch.__version__, 'gpus': gpus, 'gpu': torch.cuda.get_device_name(0) if gpus else None}))"
    )
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if said.returncode:
        sys.exit(f"error: {sys.executable} has no torch that works:\n{said.stderr}")
    return json.loads(said.stdout)


def heading(options, found):
    device = found["gpu"] if options.device == "cuda" else f"the processor ({platform.machine()})"
    sizes = ", ".join(f"{name} {getattr(options, name)}" for name in SIZES)
    command = shlex.join(["benchmarks/gpu.py", *sys.argv[1:]])
    return (
        f"`{command}`, torch {found['torch']}, on {device}, {os.cpu_count()} processors; turns: {options.turns}.\n"
        f"Decoder: {sizes}; {options.dtype} compute, fp32 shards and reductions, FULL_SHARD, fused AdamW; plain ones "
        f"wholly in {options.dtype}.\nOf each turn {options.steps} steps count, after {options.warm_up}."
    )


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--only", choices=("host_time", "steps"))
    parser.add_argument(
        "--variants", metavar="REGEX", default="", help="training steps only of variants whose names match"
    )
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="training steps of a turn that count")
    parser.add_argument("--warm-up", type=int, default=5, help="training steps before these")
    parser.add_argument(
        "--host-steps", type=int, default=150, help="steps of the chains that host time is measured with"
    )
    parser.add_argument("--fake-ranks", type=int, default=8, help="size of the fake group")
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="*",
        help="numbers of ranks that communicate (NCCL; on a CPU Gloo); default: all GPUs, where there are several",
    )
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="dtype of compute")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process")
    parser.add_argument("--port", type=int, default=29800, help="ranks meet at this port and those above")
    parser.add_argument("--folder", type=Path, default=ROOT / "output/benchmarks", help="where numbers go")
    options = parser.parse_args()
    if min(options.steps, options.turns, options.host_steps, *(getattr(options, name) for name in SIZES)) < 1:
        parser.error("numbers of turns and steps, and sizes, must be at least 1")
    if options.width % options.heads:
        parser.error(f"--width {options.width} is not a multiple of --heads {options.heads}")
    if not any(re.search(options.variants, name) for name in (*OURS, *TORCH)):
        parser.error(f"--variants {options.variants} matches none of: {', '.join((*OURS, *TORCH))}")
    return options


def check_device(options, found):
    """Sets --ranks where it was not given."""
    gpus = found["gpus"] if options.device == "cuda" else 0
    if options.device == "cuda" and gpus == 0:
        sys.exit(
            f"error: torch {found['torch']} of {sys.executable} sees no GPU: "
            "benchmarks/gpu.py --device cpu does without"
        )
    if options.ranks is None:
        options.ranks = [gpus] if gpus > 1 else []
    if options.device == "cuda" and max(options.ranks, default=0) > gpus:
        sys.exit(f"error: --ranks {max(options.ranks)} needs as many GPUs, and there are {gpus}")


def main():
    options = parse()
    found = machine()
    check_device(options, found)
    runs = Runs(options)
    print(heading(options, found), flush=True)
    if options.only != "steps":
        print(f"\n### Host time of a unit\n\n{host_time(runs, options)}", flush=True)
    if options.only != "host_time":
        groups = [("fake", 1), *(("nccl" if options.device == "cuda" else "gloo", ranks) for ranks in options.ranks)]
        for group, ranks in groups:
            title = (
                f"one rank of a fake group of {options.fake_ranks}"
                if group == "fake"
                else f"{ranks} ranks over {group}"
            )
            print(
                f"\n### Training steps, {title}\n\n{step_table(measure_steps(runs, options, group, ranks))}", flush=True
            )
    for key, reason in runs.failed.items():
        print(f"\nFailed: {', '.join(key)}: {reason}")
    sys.exit(1 if runs.failed else 0)


if __name__ == "__main__":
    main()

"""Experiment 5: what single parts cost: host time of a unit, AdamW, clipping, saving and loading a checkpoint."""

import json
import subprocess
import sys
import tempfile

import checkpoint as checkpoint_bench
import ranks as rank_processes
from comparison import ROOT, network, plots, results, runner, spread, tables, workbench
from comparison.jobs import of_strategies

TITLE = "Host time, AdamW, clipping, checkpoints"
HOST_STEPS = {"smoke": 3, "small": 100, "full": 150}
CHECKPOINTS = {"smoke": (2, 64), "small": (8, 768), "full": (16, 1536)}  # layers, width


def run(call):
    return host_time(call) + optimizer(call) + checkpoints(call)


def new_row(group, name, side):
    return {
        "group": group,
        "variant": name,
        "side": side,
        "status": "measured",
        "reason": "",
        "rounds": [],
        "losses": [],
        "figures": {},
    }


def host_time(call):
    steps, rows = HOST_STEPS[call.budget], {}
    commands = (
        [call.setting.build_dir / "host_time", steps],
        [sys.executable, ROOT / "benchmarks/host_time.py", "--steps", steps],
    )
    for number in range(call.setting.rounds):
        for command in commands if number % 2 == 0 else reversed(commands):
            done = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, timeout=call.setting.timeout, check=False
            )
            if done.returncode:
                return [runner.not_run("host time of a unit", str(command[0]), done.stderr[-600:])]
            for measured in map(json.loads, done.stdout.splitlines()):
                name = measured["variant"]
                row = rows.setdefault(name, new_row("host time of a unit", name, name.split()[0].rstrip(",")))
                row["rounds"].append({"added_ms": measured["added_ms"]})
        call.setting.say(f"host time, round {number + 1}")
    return results.summarise(list(rows.values()))


def optimizer(call):
    """AdamW and clipping as parts of training steps: on shards, and on whole parameters."""
    models = workbench.MODELS[call.budget]
    spec, batch = models.get("gpt2") or models["deepvit"]
    ranks = call.fewest_ranks
    job = workbench.make_job(call.setting, spec, batch, call.budget, ranks)
    return workbench.train(
        call.setting,
        f"AdamW and clipping, {spec.name}, {ranks} ranks",
        of_strategies(("full_shard", "no_shard")),
        job,
        ranks,
    )


def checkpoints(call):
    layers, width = CHECKPOINTS[call.budget]
    ranks, rows = call.fewest_ranks, {}
    group = f"checkpoints, {layers} layers of width {width}, {ranks} ranks"
    with network.alone(ranks) as place, tempfile.TemporaryDirectory(dir=call.setting.folder) as folder:
        worker = [sys.executable, ROOT / "benchmarks/checkpoint.py", "--worker", "--folder", folder]
        sides = {
            "fsdp.cpp": [call.setting.build_dir / "checkpoint_bench", folder, layers, width, 2],
            "DCP": [*worker, "--turns", 2, "--layers", layers, "--width", width],
        }
        for number in range(call.setting.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                try:
                    printed = json.loads(runner.run_ranks(call.setting, sides[side], place)[0])
                except rank_processes.RankError as error:
                    return [runner.not_run(group, side, str(error)[-600:])]
                row = rows.setdefault(side, new_row(group, side, side))
                row["rounds"].append(of_slowest(printed))
            call.setting.say(f"{group}, round {number + 1}")
    return results.summarise([rows[side] for side in sides])


def of_slowest(printed):
    """Median over the turns of the slowest rank's seconds."""
    return {
        f"{name}_seconds": spread.summary(checkpoint_bench.slowest(printed, name, "seconds"))["median"]
        for name in checkpoint_bench.WHAT
    }


COLUMNS = {
    "host": ((("added ms a unit", "added_ms", "{:.4f}"),), (("added ms", "added_ms"),)),
    "AdamW": (
        (
            ("optimizer, s", "optimizer_seconds", "{:.4f}"),
            ("clip, s", "clip_seconds", "{:.4f}"),
            ("s a step", "step_seconds", "{:.3f}"),
        ),
        (("optimizer", "optimizer_seconds"), ("clip", "clip_seconds")),
    ),
    "checkpoints": (
        tuple((f"{name}, s", f"{name}_seconds", "{:.3f}") for name in checkpoint_bench.WHAT),
        (("save", "save_seconds"), ("load", "load_seconds")),
    ),
}


def columns_of(group):
    return next(columns for begin, columns in COLUMNS.items() if group.startswith(begin))


def report(rows):
    parts = []
    for group, members in tables.groups_of(rows).items():
        columns, compared = columns_of(group)
        parts.append(f"### {group}\n\n" + tables.group_table(members, columns, compared))
        parts += tables.notes(members)
    return "\n\n".join(parts)


def plot(rows, folder):
    host = [row for row in rows if row["group"].startswith("host")]
    saved = [row for row in rows if row["group"].startswith("checkpoints")]
    return [
        plots.bars(host, "added_ms", "milliseconds that a unit adds", path=folder / "host-time"),
        plots.bars(saved, "save_seconds", "seconds of a save", path=folder / "checkpoint-save"),
    ]

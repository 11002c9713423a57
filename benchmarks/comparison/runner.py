"""Runs variants in rounds and collects what they measure, a row for each."""

import dataclasses
import json
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import torch

import ranks as rank_processes
from comparison import agreement
from comparison.host_memory import Watch
from comparison.jobs import OURS, Job
from comparison.network import Place
from comparison.torch_ranks import TorchRanks

# For all sides: memory that was freed is kept, so that no step asks the system for the pages of its large tensors
# again.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
OUT_OF_MEMORY = (
    "can't allocate memory",
    "bad_alloc",
    "MemoryError",
    "Cannot allocate memory",
    "out of memory",
    "can't start new thread",
)
# For all sides under a limit on memory, and where a host's is measured: a block of 64 KiB and more is a mapping of its
# own, which goes back to the system when it is freed. By default glibc raises this size with each block that is freed,
# up to 32 MiB, and keeps what is below it: of a side that frees much in every step holes between blocks would then
# count.
RETURN_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
PARTS = ("step", "forward", "backward", "clip", "optimizer")


@dataclasses.dataclass
class Setting:
    """What all runs of one call share."""

    build_dir: Path
    folder: Path  # for models and samples
    rounds: int
    threads: int
    timeout: float  # seconds of one run
    torch: TorchRanks
    seed: int = 0
    port: int = 29950
    log: object = sys.stderr

    def next_ports(self, ranks):
        """The first of as many that no earlier run of the call had."""
        self.port += ranks
        return self.port - ranks

    def say(self, text):
        print(text, file=self.log, flush=True)


def run_ranks(setting, command, place, keep_freed_memory=True, watch=None):
    """What each rank of a program prints."""
    port = setting.next_ports(place.ranks)
    common = {
        "OMP_NUM_THREADS": str(setting.threads),
        **(KEEP_FREED_MEMORY if keep_freed_memory else RETURN_FREED_MEMORY),
    }
    hosts = [(place.prefix_of(rank), place.variables_of(rank, port)) for rank in range(place.ranks)]
    return rank_processes.outputs(
        command, place.ranks, port, hosts=hosts, variables=common, timeout=setting.timeout, watch=watch
    )


def run_torch(setting, variant, job_path, place, keep_freed_memory, watch):
    port = setting.next_ports(place.ranks)
    places = [
        ({**place.variables_of(rank, port), "OMP_NUM_THREADS": str(setting.threads)}, place.namespace_of(rank))
        for rank in range(place.ranks)
    ]
    arguments = [variant.side, job_path, setting.build_dir / "libcounted_memory.so"]
    return setting.torch.outputs(arguments, places, keep_freed_memory, setting.timeout, watch)


def run_variant(setting, variant, job, place):
    """What each rank measures. With a limit on memory, or where it is watched, which is on what the process has from
    the system, what was freed goes back there."""
    keep, watch = job.memory_limit is None and not place.watched, Watch() if place.watched else None
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(dataclasses.asdict(job)))
        if variant.side == OURS:
            outputs = run_ranks(setting, [setting.build_dir / "compare_ours", path], place, keep, watch)
        else:
            outputs = run_torch(setting, variant, path, place, keep, watch)
    ranks = [json.loads(output.splitlines()[-1]) for output in outputs]
    if watch:
        ranks[0]["host"] = host_peak(watch, ranks, time.monotonic())
    return ranks


def host_peak(watch, ranks, end):
    """Bytes of all ranks in the steps that count. These are the last thing that a rank does, so what was seen since as
    many seconds before its end as they took was seen in them."""
    seconds = min(sum(step["step"]["seconds"] for step in rank["steps"]) for rank in ranks)
    return watch.peak(end - seconds, end)


def figures(ranks, place):
    """Of one run: seconds of the slowest rank's median step and its parts, and the most memory of a rank."""

    def middle(rank, part, kind):
        values = sorted(step[part][kind] for step in rank["steps"])
        return values[len(values) // 2]

    slowest = max(ranks, key=lambda rank: middle(rank, "step", "seconds"))
    result = {f"{part}_seconds": middle(slowest, part, "seconds") for part in PARTS}
    blocked = [sum(step[part]["blocked"] for part in ("forward", "backward", "clip")) for step in slowest["steps"]]
    result["exposed_seconds"] = sorted(blocked)[len(blocked) // 2]
    result["utilisation"] = 1 - middle(slowest, "step", "blocked") / result["step_seconds"]
    result["cpu_seconds"] = sum(middle(rank, "step", "cpu") for rank in ranks)
    for kind in ("allocated", "resident", "base"):
        if ranks[0].get(kind) is not None:
            result[f"{kind}_mib"] = max(rank[kind] for rank in ranks) / 2**20
    if place.counted:
        sent = sum(ranks[rank]["network_bytes"] for rank in place.first_ranks())
        result["sent_mib"] = sent / len(ranks[0]["steps"]) / 2**20
    if "payload_bytes" in ranks[0]:
        result["payload_mib"] = sum(rank["payload_bytes"] for rank in ranks) / len(ranks[0]["steps"]) / 2**20
    return result


def mean_losses(ranks):
    return [sum(losses) / len(ranks) for losses in zip(*(rank["losses"] for rank in ranks))]


def new_row(group, variant, job, ranks):
    return {
        "group": group,
        "variant": variant.name,
        "side": variant.side,
        "ranks": ranks,
        "dtype": job.dtype,
        "job": {key: value for key, value in dataclasses.asdict(job).items() if key not in ("model", "samples")},
        "status": "measured",
        "reason": "",
        "rounds": [],
        "losses": [],
        "figures": {},
    }


def fail(row, error):
    """An error that speaks of memory, of whichever rank, is why the others have failed too."""
    of_memory = next(filter(None, map(out_of_memory, (str(error), *error.errors))), None)
    row["status"] = "out of memory" if of_memory else "failed"
    row["reason"] = of_memory or str(error).strip()[-600:]


def out_of_memory(text, most=200):
    """The last line of what a rank has written that says so, without where in PyTorch it was noticed; None if there is
    none."""
    found = [line.strip() for line in text.splitlines() if any(sign in line for sign in OUT_OF_MEMORY)]
    if not found:
        return None
    line = re.sub(r"\[enforce fail at [^\]]*\] [^.]*\. ", "", found[-1])
    return line if len(line) <= most else line[:most] + " …"


@dataclasses.dataclass(frozen=True)
class Group:
    """Variants of one job, of which all must have the same losses."""

    name: str
    variants: tuple
    job: Job
    place: Place
    host_memory: bool = False  # whether each round has one more run of each, for the memory of all ranks together


def measure(setting, group, variants, common, place):
    """The rows of a group."""
    return measure_groups(setting, [Group(group, variants, common, place)])


def measure_groups(setting, groups):
    """The rows of groups that are measured together: the variants of all, in another order in each round."""
    turns = [
        (group, variant, new_row(group.name, variant, variant.job(group.job), group.place.ranks))
        for group in groups
        for variant in group.variants
    ]
    shuffled = random.Random(f"{setting.seed} {groups[0].name}")
    for number in range(setting.rounds):
        order = [turn for turn in turns if turn[2]["status"] == "measured"]
        shuffled.shuffle(order)
        for group, variant, row in order:
            run_once(setting, variant, group, row)
            setting.say(f"{group.name}, round {number + 1}, {variant.name}: {progress(row)}")
    for group in groups:
        judge(group, [row for of_group, _, row in turns if of_group is group])
    return [row for *_, row in turns]


def judge(group, rows):
    reference = agreement.void_rows(rows)
    for row in rows:
        row["reference"] = reference
        row["indicative"] = group.place.ranks * group.job.threads > (os.cpu_count() or 1)


def run_once(setting, variant, group, row):
    """Adds what one round gives to the row."""
    job, watched = variant.job(group.job), dataclasses.replace(group.place, watched=True)
    try:
        ranks = run_variant(setting, variant, job, group.place)
        more = [run_variant(setting, variant, job, watched)] if group.host_memory else []
    except rank_processes.RankError as error:
        fail(row, error)
        return
    row["rounds"].append(figures(ranks, group.place))
    row["losses"] += map(mean_losses, [ranks, *more])
    if more and more[0][0]["host"] is not None:
        row["rounds"][-1]["host_mib"] = more[0][0]["host"] / 2**20
    row["parameters"] = ranks[0]["parameters"]
    row.update({name: ranks[0][name] for name in ("flops", "recomputed_flops", "memory") if name in ranks[0]})


def progress(row):
    if row["status"] != "measured":
        return f"{row['status']}: {row['reason']}"
    last = row["rounds"][-1]
    return f"{last['step_seconds']:.3f} s a step, {last['allocated_mib']:.0f} MiB, loss {row['losses'][-1][-1]:.5f}"


def not_run(group, name, reason):
    """A row of what could not be measured here."""
    return {
        "group": group,
        "variant": name,
        "side": OURS if name.startswith(OURS) else name,
        "status": "not run",
        "reason": reason,
        "rounds": [],
        "losses": [],
        "figures": {},
    }


def versions():
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}

"""Runs variants in rounds and collects what they measure, a row for each."""

import dataclasses
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path

import ranks as rank_processes
import torch

from comparison import agreement
from comparison.jobs import OURS
from comparison.torch_ranks import TorchRanks

# For all sides: memory that was freed is kept, so that no step asks the system for the pages of its large tensors again.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory",
                 "can't start new thread")
# For all sides under a limit on memory: a block of 64 KiB and more is a mapping of its own, which goes back to the system when
# it is freed. By default glibc raises this size with each block that is freed, up to 32 MiB, and keeps what is below it: of a
# side that frees much in every step the limit would then count holes between blocks.
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

    def say(self, text):
        print(text, file=self.log, flush=True)


def run_ranks(setting, command, place, keep_freed_memory=True):
    """What each rank of a program prints."""
    setting.port += 1
    common = {"OMP_NUM_THREADS": str(setting.threads), **(KEEP_FREED_MEMORY if keep_freed_memory else RETURN_FREED_MEMORY)}
    hosts = [(place.prefix_of(rank), place.variables_of(rank, setting.port)) for rank in range(place.ranks)]
    return rank_processes.outputs(command, place.ranks, setting.port, hosts=hosts, variables=common, timeout=setting.timeout)


def run_torch(setting, variant, job_path, place, keep_freed_memory):
    setting.port += 1
    places = [({**place.variables_of(rank, setting.port), "OMP_NUM_THREADS": str(setting.threads)}, place.namespace_of(rank))
              for rank in range(place.ranks)]
    arguments = [variant.side, job_path, setting.build_dir / "libcounted_memory.so"]
    return setting.torch.outputs(arguments, places, keep_freed_memory, setting.timeout)


def run_variant(setting, variant, job, place):
    """What each rank measures. With a limit on memory, which is on what the process has from the system, what was freed
    goes back there."""
    keep = job.memory_limit is None
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(dataclasses.asdict(job)))
        if variant.side == OURS:
            outputs = run_ranks(setting, [setting.build_dir / "compare_ours", path], place, keep)
        else:
            outputs = run_torch(setting, variant, path, place, keep)
        return [json.loads(output.splitlines()[-1]) for output in outputs]


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
    return {"group": group, "variant": variant.name, "side": variant.side, "ranks": ranks, "dtype": job.dtype,
            "job": {key: value for key, value in dataclasses.asdict(job).items() if key not in ("model", "samples")},
            "status": "measured", "reason": "", "rounds": [], "losses": [], "figures": {}}


def fail(row, error):
    """An error that speaks of memory, of whichever rank, is why the others have failed too."""
    of_memory = next(filter(None, map(out_of_memory, (str(error), *error.errors))), None)
    row["status"] = "out of memory" if of_memory else "failed"
    row["reason"] = of_memory or str(error).strip()[-600:]


def out_of_memory(text, most=200):
    """The last line of what a rank has written that says so, without where in PyTorch it was noticed; None if there is none."""
    found = [line.strip() for line in text.splitlines() if any(sign in line for sign in OUT_OF_MEMORY)]
    if not found:
        return None
    line = re.sub(r"\[enforce fail at [^\]]*\] [^.]*\. ", "", found[-1])
    return line if len(line) <= most else line[:most] + " …"


def measure(setting, group, variants, common, place):
    """The rows of a group: all variants, in another order in each round."""
    rows = {variant: new_row(group, variant, variant.job(common), place.ranks) for variant in variants}
    shuffled = random.Random(f"{setting.seed} {group}")
    for number in range(setting.rounds):
        order = [variant for variant in variants if rows[variant]["status"] == "measured"]
        shuffled.shuffle(order)
        for variant in order:
            run_once(setting, variant, variant.job(common), place, rows[variant])
            setting.say(f"{group}, round {number + 1}, {variant.name}: {progress(rows[variant])}")
    reference = agreement.void_rows(list(rows.values()))
    for row in rows.values():
        row["reference"] = reference
        row["indicative"] = place.ranks * common.threads > (os.cpu_count() or 1)
    return list(rows.values())


def run_once(setting, variant, job, place, row):
    """Adds what one round gives to the row."""
    try:
        ranks = run_variant(setting, variant, job, place)
    except rank_processes.RankError as error:
        fail(row, error)
        return
    row["rounds"].append(figures(ranks, place))
    row["losses"].append(mean_losses(ranks))
    row["parameters"] = ranks[0]["parameters"]
    row.update({name: ranks[0][name] for name in ("flops", "recomputed_flops", "memory") if name in ranks[0]})


def progress(row):
    if row["status"] != "measured":
        return f"{row['status']}: {row['reason']}"
    last = row["rounds"][-1]
    return f"{last['step_seconds']:.3f} s a step, {last['allocated_mib']:.0f} MiB, loss {row['losses'][-1][-1]:.5f}"


def not_run(group, name, reason):
    """A row of what could not be measured here."""
    return {"group": group, "variant": name, "side": OURS if name.startswith(OURS) else name, "status": "not run",
            "reason": reason, "rounds": [], "losses": [], "figures": {}}


def versions():
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}

"""Experiment 1, after the paper's figure 2: all-gathers of a fixed total against the size of one collective, and even,
uneven and list forms."""

import json
import random

import ranks as rank_processes
from comparison import network, plots, results, runner, spread, tables

TITLE = "All-gather: the size of one collective"
# Elements of all gathers together, and of one, from small to large. The paper's total is 2^30.
SIZES = {
    "smoke": (2**16, (2**10, 2**13, 2**16)),
    "small": (2**25, tuple(2**power for power in range(14, 26, 2)) + (2**25,)),
    "full": (2**30, tuple(2**power for power in range(14, 29))),
}
KNEE = 1.5  # from the knee on the total takes at most this many times the least, in the best round


def run(call):
    rows = []
    for ranks in call.ranks:
        if ranks < 2:
            continue
        with network.alone(ranks) as place:
            rows += measure(call, place)
    return results.summarise(rows)


def measure(call, place):
    total, sizes = SIZES[call.budget]
    group, rows = f"Gloo, {place.ranks} ranks, {total} elements", {}
    shuffled = random.Random(call.setting.seed)
    for number in range(call.setting.rounds):
        order = list(sizes)
        shuffled.shuffle(order)
        try:
            command = [call.setting.build_dir / "compare_gathers", total, number, *order]
            seconds = json.loads(runner.run_ranks(call.setting, command, place)[0])
        except rank_processes.RankError as error:
            return [runner.not_run(group, "fsdp.cpp and c10d", str(error)[-600:])]
        for form, by_size in seconds.items():
            row = rows.setdefault(form, new_row(group, form, place.ranks))
            row["rounds"].append({size: by_size[size] for size in sorted(by_size, key=int)})
        call.setting.say(f"{group}, round {number + 1}: {json.dumps(seconds['fsdp.cpp even'])}")
    return [rows[form] for form in sorted(rows, key=lambda form: (not form.startswith("fsdp"), form))]


def new_row(group, form, ranks):
    return {
        "group": group,
        "variant": form,
        "side": form.split()[0],
        "ranks": ranks,
        "status": "measured",
        "reason": "",
        "rounds": [],
        "losses": [],
        "figures": {},
    }


def knee(row):
    """The smallest gather from which on larger ones gain little."""
    seconds = {int(size): figures["min"] for size, figures in row["figures"].items()}
    found, best = max(seconds), min(seconds.values())
    for size in sorted(seconds, reverse=True):
        if seconds[size] > KNEE * best:
            break
        found = size
    return found


def report(rows):
    parts = []
    for group, members in tables.groups_of(rows).items():
        measured = [row for row in members if row["status"] == "measured"]
        sizes = sorted({int(size) for row in measured for size in row["figures"]})
        lines = [
            [
                row["variant"],
                *(
                    spread.shown(row["figures"][str(size)], "{:.3f}") if str(size) in row["figures"] else "–"
                    for size in sizes
                ),
                f"{knee(row)}",
            ]
            for row in measured
        ]
        parts.append(
            f"### {group}: seconds\n\n" + tables.table(["form", *(f"{size}" for size in sizes), "knee"], lines)
        )
        parts += tables.notes(members)
    parts.append(
        f"The knee is the smallest size from which on the total takes at most {KNEE} times the least, by the best "
        "rounds; the paper's, over NCCL on InfiniBand, is at 33 million elements. A unit should have at least that "
        "many: below it, its gathers cost more than their bytes. Uneven forms need that many elements a rank."
    )
    return "\n\n".join(parts)


def plot(rows, folder):
    names = []
    for members in tables.groups_of([row for row in rows if row["figures"]]).values():
        series = {
            row["variant"]: [(int(size), figures["median"]) for size, figures in row["figures"].items()]
            for row in members
        }
        base = next(row for row in members if row["variant"] == "fsdp.cpp even")
        names.append(
            plots.lines(
                series,
                ("elements of one all-gather", "seconds for the total"),
                mark=(knee(base), "knee of fsdp.cpp even"),
                path=folder / f"all-gather-{members[0]['ranks']}-ranks",
            )
        )
    return names

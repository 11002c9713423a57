"""Experiment 6: ranks of one host, over shared memory and over Gloo, beside PyTorch's, beside one process alone and
beside as many processes that share nothing; and what they all have of the host's memory."""

import dataclasses

from comparison import network, plots, runner, tables, workbench
from comparison.jobs import DDP, FSDP1, FSDP2, OURS, PLAIN, variant

TITLE = "Ranks of one host"
SMOLLM2 = dataclasses.replace(workbench.MODELS["full"]["llama"][0], name="SmolLM2 135M, 64 tokens", length=64)
MODELS = {"smoke": workbench.MODELS["smoke"]["deepvit"][0], "small": SMOLLM2, "full": SMOLLM2}
SMOKE_STEPS = 100  # they are so short that a few would end before the ranks are looked at
ALONE, APART = ([variant(side, note, strategy="no_shard") for side in (PLAIN, OURS)] for note in ("alone", "apart"))
TOGETHER = (
    variant(OURS, "shared memory", backend="shm"),
    variant(OURS, "Gloo"),
    variant(DDP, strategy="no_shard"),
    variant(FSDP1),
    variant(FSDP2),
)
COLUMNS = (
    ("s a step", "step_seconds", "{:.3f}"),
    ("CPU s a step", "cpu_seconds", "{:.3f}"),
    ("samples/s", "samples_per_second", "{:.2f}"),
    ("exposed", "exposed_seconds", "{:.3f}"),
    ("sent MiB", "sent_mib", "{:.1f}"),
    ("allocated MiB", "allocated_mib", "{:.1f}"),
    ("host MiB", "host_mib", "{:.0f}"),
)
COMPARED = (("s a step", "step_seconds"), ("host MiB", "host_mib"))
EXPLAINED = (
    "With several ranks fsdp.cpp, FSDP1 and FSDP2 are at full_shard. Each rank trains one sample a step: N ranks train "
    "N times what one process alone\n"
    "does. *apart*: as many processes as there are ranks, at the same time, each of which trains alone: what the "
    "machine has for so many when\n"
    "they exchange nothing, so what a row has above it is what belonging together costs. All rows of the page take "
    'turns in the same rounds, whatever their number of ranks, so columns "/ FSDP2", "/ PyTorch apart" (both\n'
    'of as many ranks) and "/ PyTorch alone" divide round by round as well. Losses are compared among rows of a '
    "table.\n\n"
    "*host MiB* is the memory of all ranks together at its peak in the steps that count: the sum of their proportional "
    "set sizes\n"
    "(`Pss` in `/proc/PID/smaps_rollup`), in which a page that several processes map counts once over all of them. It "
    "comes from a run of\n"
    "its own beside each that is timed, in which whoever started the ranks reads it again and again, and in which "
    "blocks of 64 KiB and more go back to\n"
    "the system when they are freed: otherwise what loading has freed would count. PyTorch's ranks are forked from a "
    "process that has imported\n"
    "PyTorch, whose pages they share with it, so that they have less than ranks that are started one by one. What is "
    "allocated is not there over\n"
    "shared memory, which no allocator counts."
)


def run(call):
    budget, counts = call.budget, [ranks for ranks in call.ranks if ranks > 1]
    with network.alone(max(counts, default=1)) as place:
        groups = [
            runner.Group(
                name_of(MODELS[budget], ranks),
                TOGETHER if ranks > 1 else ALONE,
                job_of(call, ranks),
                place.of(ranks),
                host_memory=True,
            )
            for ranks in (1, *counts)
        ]
        groups += [
            runner.Group(
                f"{MODELS[budget].name}, {ranks} processes apart",
                APART,
                job_of(call, 1),
                dataclasses.replace(place.of(ranks), apart=True),
            )
            for ranks in counts
        ]
        return workbench.complete(without_uncounted(runner.measure_groups(call.setting, groups)))


def without_uncounted(rows):
    """Memory that ranks share comes from no allocator, so what theirs counts is not what the other rows' do."""
    for row in rows:
        for figures in row["rounds"] if row["job"]["backend"] == "shm" else ():
            del figures["allocated_mib"]
    return rows


def name_of(spec, ranks):
    return f"{spec.name}, {ranks} ranks" if ranks > 1 else f"{spec.name}, one process"


def job_of(call, ranks):
    job = workbench.make_job(call.setting, MODELS[call.budget], 1, call.budget, ranks)
    return dataclasses.replace(job, steps=SMOKE_STEPS) if call.budget == "smoke" else job


def measured(rows, chosen, ranks):
    """The row of this variant with as many ranks; None if there is none that counts."""
    return next(
        (row for row in rows if (row["variant"], row["ranks"], row["status"]) == (chosen.name, ranks, "measured")), None
    )


def report(rows):
    def base(chosen, ranks=None):
        return chosen.name, lambda row, _: measured(rows, chosen, ranks or row["ranks"])

    bases = (base(variant(FSDP2)), base(APART[0]), base(ALONE[0], ranks=1))
    parts = [EXPLAINED]
    for group, members in tables.groups_of(rows).items():
        parts.append(f"### {group}\n\n" + tables.group_table(members, COLUMNS, COMPARED, bases))
        parts += tables.crowded(members)
        parts += tables.notes(members)
    return "\n\n".join(parts)


def plot(rows, folder):
    return [
        plots.bars(rows, "step_seconds", "seconds of a step", path=folder / "one-host-seconds"),
        plots.bars(rows, "host_mib", "peak MiB of all ranks together", path=folder / "one-host-memory"),
    ]

"""Experiment 4, after the paper's figures 7 and 8: throughput, what a step consists of, memory and traffic by ranks and batch
size; activation checkpointing, mixed precision, offload."""

from comparison import plots, tables, workbench
from comparison.jobs import FSDP1, FSDP2, OURS, of_strategies, variant

TITLE = "Ranks, batch size and features"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")
BATCHES = {"smoke": (), "small": (1, 8), "full": (1, 8, 16)}
COLUMNS = (*workbench.TRAINING_COLUMNS, ("sent / formula", "sent_of_formula", "{:.2f}"))


def run(call):
    rows = []
    for spec, batch in workbench.MODELS[call.budget].values():
        for ranks in call.ranks:
            job = workbench.make_job(call.setting, spec, batch, call.budget, ranks)
            rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks", of_strategies(STRATEGIES), job, ranks)
    return rows + by_batch(call) + features(call)


def by_batch(call):
    rows, ranks = [], min(call.ranks)
    for batch in BATCHES[call.budget]:
        spec, _ = workbench.MODELS[call.budget]["gpt2"]
        job = workbench.make_job(call.setting, spec, batch, call.budget, ranks)
        rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks, batch {batch}", of_strategies(("full_shard",)), job, ranks)
    return rows


def features(call):
    models = workbench.MODELS[call.budget]
    spec, batch = models.get("gpt2") or models["deepvit"]
    ranks, rows = min(call.ranks), []
    for name, settings, sides in (("activation checkpointing", {"checkpointing": True}, (OURS, FSDP1, FSDP2)),
                                  ("bf16", {"dtype": "bf16"}, (OURS, FSDP1, FSDP2)),
                                  # On a CPU PyTorch's CPUOffload changes nothing, as does ours without files.
                                  ("offload to files", {"offload": True}, (OURS,))):
        job = workbench.make_job(call.setting, spec, batch, call.budget, ranks, **settings)
        variants = tuple(variant(side, "full_shard") for side in sides)
        rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks, {name}", variants, job, ranks)
    return rows


def report(rows):
    parts = []
    for group, members in tables.groups_of(rows).items():
        parts.append(f"### {group}\n\n" + tables.group_table(members, COLUMNS, workbench.COMPARED))
        if any(row.get("indicative") for row in members):
            parts.append("More ranks than cores: times are indicative.")
        parts += tables.notes(members)
    return "\n\n".join(parts)


def plot(rows, folder):
    plain = [row for row in rows if row["group"].count(",") == 1]  # neither by batch nor features
    return [plots.bars(plain, "samples_per_second", "samples a second", folder / "scaling-throughput"),
            plots.bars(plain, "allocated_mib", "peak MiB of tensors, a rank", folder / "scaling-memory"),
            plots.split(plain, folder / "scaling-split")]

"""Experiment 3, after the paper's figures 6 (b) and (c): prefetching and the rate limiter over a throttled link, on a
convolution, a vision transformer and a T5 model; hybrid against full sharding over two hosts with a slow link
between."""

from comparison import network, plots, runner, tables, workbench
from comparison.jobs import FSDP1, FSDP2, OURS, variant

TITLE = "Overlap over a throttled link"
KINDS = ("regnet", "deepvit", "t5")
MBIT = {"smoke": 400, "small": 400, "full": 1000}
NO_PREFETCH = dict(backward_prefetch="none", forward_prefetch=False)
VARIANTS = (
    variant(OURS),
    variant(OURS, "without prefetch", **NO_PREFETCH),
    variant(OURS, "without forward prefetch", forward_prefetch=False),
    variant(OURS, "without limit", limit_all_gathers=False),
    variant(FSDP1),
    variant(FSDP1, "without prefetch", **NO_PREFETCH),
    variant(FSDP1, "without limit", limit_all_gathers=False),
    variant(FSDP2),
    variant(FSDP2, "without forward prefetch", forward_prefetch=False),
)
HYBRID = tuple(
    variant(side, strategy, strategy=strategy, sharding_factor=2 if strategy == "hybrid_shard" else None)
    for strategy in ("full_shard", "hybrid_shard")
    for side in (OURS, FSDP1, FSDP2)
)


def run(call):
    models, rows = workbench.MODELS[call.budget], []
    for kind in KINDS:
        if kind in models:
            rows += group(call, *models[kind], 2, VARIANTS, "")
    if max(call.ranks) >= 4:
        rows += group(call, *models["deepvit"], 4, HYBRID, ", 2 a host")
    return rows


def group(call, spec, batch, ranks, variants, more):
    mbit = MBIT[call.budget]
    name = f"{spec.name}, {ranks} ranks{more}, {mbit} Mbit/s"
    job = workbench.make_job(call.setting, spec, batch, call.budget, ranks)
    try:
        return workbench.train(call.setting, name, variants, job, ranks, network.two_hosts(ranks, mbit))
    except network.NotPermitted as error:
        return [runner.not_run(name, variant.name, str(error)) for variant in variants]


def report(rows):
    parts = []
    for name, members in tables.groups_of(rows).items():
        parts.append(f"### {name}\n\n" + tables.group_table(members, workbench.columns_of(members), workbench.COMPARED))
        parts += tables.notes(members)
    return "\n\n".join(parts)


def plot(rows, folder):
    return [plots.bars(rows, "step_seconds", "seconds of a step", path=folder / "overlap")]

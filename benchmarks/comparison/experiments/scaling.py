"""Experiment 4, after the paper's figures 7 and 8: throughput, what a step consists of, memory and traffic by ranks and
batch size; activation checkpointing, mixed precision, offload."""

from comparison import plots, tables, workbench
from comparison.jobs import FSDP1, FSDP2, OURS, of_strategies, variant
from comparison.models import model

TITLE = "Ranks, batch size and features"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")
BATCHES = {"smoke": (), "small": (1, 8), "full": (1, 8, 16)}
SENT_COLUMN = (("sent / formula", "sent_of_formula", "{:.2f}"),)


def run(call):
    rows = []
    for spec, batch in workbench.MODELS[call.budget].values():
        for ranks in call.ranks:
            job = workbench.make_job(call.setting, spec, batch, call.budget, ranks)
            rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks", of_strategies(STRATEGIES), job, ranks)
    return rows + by_batch(call) + features(call) + dhen(call)


def by_batch(call):
    rows, ranks = [], call.fewest_ranks
    for batch in BATCHES[call.budget]:
        spec, _ = workbench.MODELS[call.budget]["gpt2"]
        job = workbench.make_job(call.setting, spec, batch, call.budget, ranks)
        rows += workbench.train(
            call.setting, f"{spec.name}, {ranks} ranks, batch {batch}", of_strategies(("full_shard",)), job, ranks
        )
    return rows


def features(call):
    models = workbench.MODELS[call.budget]
    spec, batch = models.get("gpt2") or models["deepvit"]
    ranks, rows = call.fewest_ranks, []
    for name, settings, sides in (
        ("activation checkpointing", {"checkpointing": True}, (OURS, FSDP1, FSDP2)),
        ("bf16", {"dtype": "bf16"}, (OURS, FSDP1, FSDP2)),
        # On a CPU PyTorch's CPUOffload changes nothing, as does ours without files.
        ("offload to files", {"offload": True}, (OURS,)),
    ):
        job = workbench.make_job(call.setting, spec, batch, call.budget, ranks, **settings)
        variants = tuple(variant(side, "full_shard") for side in sides)
        rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks, {name}", variants, job, ranks)
    return rows


# DHEN keeps its tables split over ranks beside what FSDP shards.
DHEN = {
    "smoke": (
        model(
            "DHEN smoke",
            "dhen",
            0,
            num_numeric_features=4,
            table_rows=[50, 7, 100],
            embedding_width=8,
            num_hidden_layers=2,
            interactions=["attention", "dot_product", "mlp"],
            interaction_outputs=2,
            num_attention_heads=2,
            mlp_size=16,
        ),
        4,
    ),
    "small": (
        model(
            "DHEN small",
            "dhen",
            0,
            num_numeric_features=64,
            table_rows=[200000] * 2 + [2000] * 22,
            embedding_width=64,
            num_hidden_layers=4,
            interactions=["attention", "cross", "dot_product", "mlp"],
            interaction_outputs=8,
            num_attention_heads=4,
            cross_rank=64,
            mlp_size=512,
            numeric_sizes=[256],
            head_sizes=[256],
        ),
        64,
    ),
    "full": (
        model(
            "DHEN 30M",
            "dhen",
            0,
            num_numeric_features=256,
            table_rows=[2000000] * 2 + [20000] * 62,
            embedding_width=64,
            num_hidden_layers=4,
            interactions=["attention", "cross", "dot_product", "mlp"],
            interaction_outputs=16,
            num_attention_heads=4,
            cross_rank=256,
            mlp_size=1024,
            numeric_sizes=[512],
            head_sizes=[512],
        ),
        256,
    ),
}
DHEN_SIDES = (OURS, FSDP1, FSDP2)


def dhen(call):
    """With and without resharding after forward, within all ranks and within pairs of them."""
    (spec, batch), rows = DHEN[call.budget], []
    for ranks in call.ranks:
        if ranks < 2:
            continue
        strategies = [
            "full_shard",
            "shard_grad_op",
            *(["hybrid_shard", "hybrid_shard_zero2"] if ranks % 2 == 0 and ranks > 2 else []),
        ]
        variants = tuple(
            variant(side, strategy, strategy=strategy, sharding_factor=2 if "hybrid" in strategy else None)
            for strategy in strategies
            for side in DHEN_SIDES
        )
        job = workbench.make_job(call.setting, spec, batch, call.budget, ranks)
        rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks, tables split", variants, job, ranks)
    return rows


def report(rows):
    parts = []
    for group, members in tables.groups_of(rows).items():
        parts.append(
            f"### {group}\n\n"
            + tables.group_table(members, workbench.columns_of(members, SENT_COLUMN), workbench.COMPARED)
        )
        parts += tables.crowded(members)
        if "tables split" in group:
            parts.append(
                "Rows that were looked up, and their gradients, are sent as well; the formula has dense weights alone. "
                "The layers are the units, rows learn by row-wise Adagrad on their owner."
            )
        parts += tables.notes(members)
    return "\n\n".join(parts)


def plot(rows, folder):
    plain = [row for row in rows if row["group"].count(",") == 1]  # neither by batch nor features
    return [
        plots.bars(plain, "samples_per_second", "samples a second", path=folder / "scaling-throughput"),
        plots.bars(plain, "allocated_mib", "peak MiB of tensors, a rank", path=folder / "scaling-memory"),
        plots.split(plain, path=folder / "scaling-split"),
    ]

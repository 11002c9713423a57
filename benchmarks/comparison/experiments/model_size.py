"""Experiment 2, after the paper's figure 6 (a): throughput and peak memory by size of the model, for DDP and each strategy;
and where a limit on each process lets DDP run out of memory and not what is sharded."""

from comparison import plots, tables, workbench
from comparison.jobs import DDP, FSDP1, FSDP2, LEAST_MEMORY, OURS, of_strategies, variant
from comparison.models import model

TITLE = "Model size: throughput and peak memory"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")


def t5(name, width, layers, length=64):
    return model(name, "t5", length, vocab_size=2048, d_model=width, d_kv=64, d_ff=4 * width, num_layers=layers,
                 num_heads=width // 64, decoder_start_token_id=0)


# Models from small to large; bytes that each process may take beside what it has without the model.
SIZES = {
    "smoke": ([workbench.MODELS["smoke"]["deepvit"][0]], None),
    "small": ([t5("T5 4M", 192, 3), t5("T5 15M", 384, 3), t5("T5 52M", 640, 4)], 640 << 20),
    "full": ([t5("T5 15M", 384, 3), t5("T5 52M", 640, 4), t5("T5 150M", 1024, 5), t5("T5 300M", 1280, 6)], 3 << 30),
}


def run(call):
    specs, limit = SIZES[call.budget]
    rows = []
    for spec in specs:
        for ranks in call.ranks:
            job = workbench.make_job(call.setting, spec, 2, call.budget, ranks)
            rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks", of_strategies(STRATEGIES), job, ranks)
    return rows + (limited(call, specs, limit) if limit else [])


def limited(call, specs, limit):
    ranks, rows = max(call.ranks), []
    variants = (variant(OURS, "full_shard"), LEAST_MEMORY, variant(FSDP1, "full_shard"), variant(FSDP2, "full_shard"),
                variant(OURS, "no_shard", strategy="no_shard"), variant(DDP, strategy="no_shard"))
    for spec in specs:
        job = workbench.make_job(call.setting, spec, 2, call.budget, ranks, memory_limit=limit)
        rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks, at most {limit >> 20} MiB a process", variants, job, ranks)
    return rows


def report(rows):
    parts = []
    for group, members in tables.groups_of(rows).items():
        parts.append(f"### {group}\n\n" + tables.group_table(members, workbench.TRAINING_COLUMNS, workbench.COMPARED))
        parts += tables.notes(members)
    return "\n\n".join(parts)


def plot(rows, folder):
    free = [row for row in rows if "at most" not in row["group"]]
    return [plots.bars(free, "samples_per_second", "samples a second", folder / "model-size-throughput"),
            plots.bars(free, "allocated_mib", "peak MiB of tensors, a rank", folder / "model-size-memory")]

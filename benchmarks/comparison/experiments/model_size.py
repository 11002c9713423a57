"""Experiment 2, after the paper's figure 6 (a): throughput and peak memory by size of the model, for DDP and each
strategy; and where a limit on each process lets DDP run out of memory and not what is sharded."""

import dataclasses

from comparison import plots, tables, workbench
from comparison.jobs import DDP, FSDP1, FSDP2, LEAST_MEMORY, OURS, of_strategies, variant
from comparison.models import model

TITLE = "Model size: throughput and peak memory"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")


def t5(name, width, layers, length=64):
    return model(
        name,
        "t5",
        length,
        vocab_size=2048,
        d_model=width,
        d_kv=64,
        d_ff=4 * width,
        num_layers=layers,
        num_heads=width // 64,
        decoder_start_token_id=0,
    )


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Models from small to large; those trained under a limit; the limit: bytes that each process may take beside
    its base."""

    free: tuple
    limited: tuple
    limit: int


FEW = (t5("T5 4M", 192, 3), t5("T5 15M", 384, 3), t5("T5 52M", 640, 4))
MANY = (*FEW[1:], t5("T5 150M", 1024, 5), t5("T5 300M", 1280, 6))
SIZES = {
    "smoke": Sizes(
        (workbench.MODELS["smoke"]["deepvit"][0],),
        (
            model(
                "DeepViT 11M",
                "deepvit",
                16,
                image_size=16,
                patch_size=4,
                hidden_size=384,
                num_hidden_layers=6,
                num_attention_heads=2,
                intermediate_size=1536,
                num_labels=5,
            ),
        ),
        160 << 20,
    ),
    "small": Sizes(FEW, FEW, 640 << 20),
    "full": Sizes(MANY, MANY, 3 << 30),
}
BASE_COLUMN = (("base MiB", "base_mib", "{:.0f}"),)
LIMIT = (
    "**The limit.** Each rank first trains a layer of 8 x 8 for one step: forward, backward, an all-reduce, AdamW. "
    "What its process then\n"
    "has of private memory that can be written (`VmData` in `/proc/PID/status`: heap, tensors, stacks of threads, on "
    "PyTorch's side also the\n"
    "interpreter's objects) is its *base*. `RLIMIT_DATA` is set to the base and the budget that the table names, the "
    "same on all sides, before\n"
    "samples and weights are read. So the budget holds the model as it is loaded, shards, gradients, AdamW's state, "
    "activations, and what the\n"
    "library takes for communication; files that are mapped for reading do not count, and stacks of threads that start "
    "later count\n"
    "1 MiB each (they reserve 8 by default, whether they use it or not). On all sides blocks of 64 KiB and more go "
    "back to the\n"
    "system when they are freed (glibc's `M_MMAP_THRESHOLD`): with glibc's defaults, holes in the heaps counted as "
    "well, 190 MiB for FSDP2 with 135 MiB\n"
    "of tensors and 50 MiB for DDP with 222 MiB, which frees little."
)


def run(call):
    sizes, rows = SIZES[call.budget], []
    for spec in sizes.free:
        for ranks in call.ranks:
            job = workbench.make_job(call.setting, spec, 2, call.budget, ranks)
            rows += workbench.train(call.setting, f"{spec.name}, {ranks} ranks", of_strategies(STRATEGIES), job, ranks)
    return rows + limited(call, sizes.limited, sizes.limit)


def limited(call, specs, limit):
    ranks, rows = max(call.ranks), []
    variants = (
        variant(OURS, "full_shard"),
        LEAST_MEMORY,
        variant(FSDP1, "full_shard"),
        variant(FSDP2, "full_shard"),
        variant(OURS, "no_shard", strategy="no_shard"),
        variant(DDP, strategy="no_shard"),
    )
    for spec in specs:
        job = workbench.make_job(call.setting, spec, 2, call.budget, ranks, memory_limit=limit)
        rows += workbench.train(
            call.setting, f"{spec.name}, {ranks} ranks, at most {limit >> 20} MiB a process", variants, job, ranks
        )
    return rows


def is_limited(row):
    return row["job"]["memory_limit"] is not None


def report(rows):
    parts = []
    for group, members in tables.groups_of(rows).items():
        if is_limited(members[0]) and LIMIT not in parts:
            parts.append(LIMIT)
        columns = workbench.columns_of(members, BASE_COLUMN if is_limited(members[0]) else ())
        parts.append(f"### {group}\n\n" + tables.group_table(members, columns, workbench.COMPARED))
        parts += tables.notes(members)
    return "\n\n".join(parts)


def plot(rows, folder):
    free = [row for row in rows if not is_limited(row)]
    return [
        plots.bars(free, "samples_per_second", "samples a second", path=folder / "model-size-throughput"),
        plots.bars(free, "allocated_mib", "peak MiB of tensors, a rank", path=folder / "model-size-memory"),
    ]

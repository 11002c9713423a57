"""Experiment 7: decoders of today, dense and with experts, beside PyTorch's ways to train those of transformers."""

from comparison import network, plots, runner, tables, workbench
from comparison.experiments.one_host import TOGETHER, without_uncounted
from comparison.jobs import FSDP2, OURS, PLAIN, variant
from comparison.models import model

TITLE = "Qwen 3, dense and with experts"

ALONE = (variant(PLAIN, strategy="no_shard"), variant(OURS, strategy="no_shard"))
COLUMNS = (
    ("s a step", "step_seconds", "{:.3f}"),
    ("CPU s a step", "cpu_seconds", "{:.3f}"),
    ("samples/s", "samples_per_second", "{:.2f}"),
    ("sent MiB", "sent_mib", "{:.1f}"),
    ("allocated MiB", "allocated_mib", "{:.1f}"),
)
COMPARED = (("s a step", "step_seconds"),)
EXPLAINED = (
    "Both sides read the same folder; transformers runs its defaults, for the experts its grouped product. With "
    "several ranks fsdp.cpp, FSDP1\nand FSDP2 are at full_shard. One process trains as many samples a step as each "
    "of several ranks does."
)


def decoder(name, kind, length, width, layers, **sizes):
    return model(
        name,
        kind,
        length,
        hidden_size=width,
        num_hidden_layers=layers,
        head_dim=64,
        max_position_embeddings=4 * length,
        initializer_range=0.02,
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **sizes,
    )


def dense(name, length, width, layers, vocabulary):
    heads = dict(num_attention_heads=width // 64, num_key_value_heads=width // 128)
    return decoder(name, "qwen3", length, width, layers, vocab_size=vocabulary, intermediate_size=3 * width, **heads)


def with_experts(name, length, width, layers, vocabulary, experts):
    heads = dict(num_attention_heads=width // 64, num_key_value_heads=width // 128)
    of_experts = dict(num_experts=experts, num_experts_per_tok=4, moe_intermediate_size=width // 2, norm_topk_prob=True)
    return decoder(
        name,
        "qwen3_moe",
        length,
        width,
        layers,
        vocab_size=vocabulary,
        intermediate_size=3 * width,
        **heads,
        **of_experts,
    )


MODELS = {
    "smoke": (dense("Qwen 3 smoke", 16, 128, 2, 512), with_experts("Qwen 3 MoE smoke", 16, 128, 2, 512, 5)),
    "small": (dense("Qwen 3 small", 128, 512, 8, 8192), with_experts("Qwen 3 MoE small", 128, 384, 6, 8192, 16)),
    "full": (dense("Qwen 3 150M", 256, 768, 16, 49152), with_experts("Qwen 3 MoE 250M", 256, 512, 12, 49152, 32)),
}


def run(call):
    counts = [ranks for ranks in call.ranks if ranks > 1]
    groups = []
    with network.alone(max(counts, default=1)) as place:
        for spec in MODELS[call.budget]:
            groups += [
                runner.Group(
                    f"{spec.name}, {ranks} ranks" if ranks > 1 else f"{spec.name}, one process",
                    TOGETHER if ranks > 1 else ALONE,
                    workbench.make_job(call.setting, spec, 2, call.budget, ranks),
                    place.of(ranks),
                )
                for ranks in (1, *counts)
            ]
        return workbench.complete(without_uncounted(runner.measure_groups(call.setting, groups)))


def report(rows):
    parts = [EXPLAINED]
    for group, members in tables.groups_of(rows).items():
        alone = all(row["ranks"] == 1 for row in members)
        parts.append(f"### {group}\n\n" + tables.group_table(members, COLUMNS, COMPARED, (base(alone),)))
        parts += tables.crowded(members)
        parts += tables.notes(members)
    return "\n\n".join(parts)


def base(alone):
    """The row that others of its group are divided by: of PyTorch, alone or FSDP2."""
    chosen = ALONE[0] if alone else variant(FSDP2)

    def of(row, rows):
        return next((r for r in rows if r["variant"] == chosen.name and r["status"] == "measured"), None)

    return chosen.name, of


def plot(rows, folder):
    return [plots.bars(rows, "step_seconds", "seconds of a step", path=folder / "decoders-seconds")]

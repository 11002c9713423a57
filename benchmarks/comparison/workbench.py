"""What experiments share: sizes of models, and groups of training runs."""

import dataclasses

from comparison import models, network, results, runner
from comparison.jobs import PLAIN, Job
from comparison.models import model

TRAINING_COLUMNS = (
    ("s a step", "step_seconds", "{:.3f}"),
    ("CPU s a step", "cpu_seconds", "{:.3f}"),
    ("samples/s", "samples_per_second", "{:.2f}"),
    ("TFLOPS", "tflops", "{:.4f}"),
    ("forward", "forward_seconds", "{:.3f}"),
    ("backward", "backward_seconds", "{:.3f}"),
    ("clip", "clip_seconds", "{:.3f}"),
    ("optimizer", "optimizer_seconds", "{:.3f}"),
    ("exposed", "exposed_seconds", "{:.3f}"),
    ("busy", "utilisation", "{:.2f}"),
    ("allocated MiB", "allocated_mib", "{:.1f}"),
    ("resident MiB", "resident_mib", "{:.0f}"),
    ("sent MiB", "sent_mib", "{:.1f}"),
)
COMPARED = (("s a step", "step_seconds"), ("CPU s", "cpu_seconds"), ("allocated", "allocated_mib"))

HARDWARE_COLUMNS = (("hardware TFLOPS", "hardware_tflops", "{:.4f}"),)  # of groups that recompute activations

MODELS = {
    "smoke": {
        "deepvit": (
            model(
                "DeepViT smoke",
                "deepvit",
                16,
                image_size=16,
                patch_size=4,
                hidden_size=32,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=64,
                num_labels=5,
            ),
            2,
        )
    },
    "small": {
        "llama": (
            model(
                "Llama small",
                "llama",
                128,
                vocab_size=4096,
                hidden_size=256,
                intermediate_size=704,
                num_hidden_layers=6,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=256,
                tie_word_embeddings=False,
            ),
            2,
        ),
        "gpt2": (
            model(
                "GPT-2 small",
                "gpt2",
                128,
                vocab_size=4096,
                n_embd=256,
                n_layer=6,
                n_head=4,
                n_positions=128,
                bos_token_id=0,
                eos_token_id=0,
            ),
            2,
        ),
        "t5": (
            model(
                "T5 small",
                "t5",
                128,
                vocab_size=4096,
                d_model=256,
                d_kv=64,
                d_ff=1024,
                num_layers=4,
                num_heads=4,
                decoder_start_token_id=0,
            ),
            2,
        ),
        "regnet": (
            model(
                "RegNet small",
                "regnet",
                64,
                embedding_size=32,
                hidden_sizes=[64, 128, 320, 640],
                depths=[1, 2, 4, 2],
                groups_width=32,
                num_labels=100,
            ),
            4,
        ),
        "deepvit": (
            model(
                "DeepViT small",
                "deepvit",
                96,
                image_size=96,
                patch_size=16,
                hidden_size=256,
                num_hidden_layers=8,
                num_attention_heads=8,
                intermediate_size=768,
                num_labels=100,
            ),
            4,
        ),
    },
    "full": {
        "llama": (
            model(
                "Llama 135M",
                "llama",
                256,
                vocab_size=49152,
                hidden_size=576,
                intermediate_size=1536,
                num_hidden_layers=30,
                num_attention_heads=9,
                num_key_value_heads=3,
                max_position_embeddings=2048,
                tie_word_embeddings=True,
            ),
            4,
        ),
        "gpt2": (
            model("GPT-2 124M", "gpt2", 256, vocab_size=50257, n_embd=768, n_layer=12, n_head=12, n_positions=1024),
            4,
        ),
        "t5": (
            model(
                "T5 110M",
                "t5",
                256,
                vocab_size=32128,
                d_model=768,
                d_kv=64,
                d_ff=2048,
                num_layers=6,
                num_heads=12,
                decoder_start_token_id=0,
            ),
            4,
        ),
        "regnet": (
            model(
                "RegNet Y 4GF",
                "regnet",
                224,
                embedding_size=32,
                hidden_sizes=[128, 192, 512, 1088],
                depths=[2, 6, 12, 2],
                groups_width=64,
                num_labels=1000,
            ),
            8,
        ),
        "deepvit": (
            model(
                "DeepViT S",
                "deepvit",
                224,
                image_size=224,
                patch_size=16,
                hidden_size=396,
                num_hidden_layers=16,
                num_attention_heads=12,
                intermediate_size=1188,
                num_labels=1000,
            ),
            8,
        ),
    },
}
STEPS = {"smoke": (1, 2), "small": (2, 4), "full": (2, 8)}  # that warm up, that count


def make_job(setting, spec, batch, budget, ranks, **changes):
    warm_up, steps = STEPS[budget]
    count = ranks * batch * (warm_up + steps)
    return Job(
        str(models.make_folder(spec, setting.folder)),
        str(models.make_samples(spec, count, setting.folder)),
        batch=batch,
        warm_up=warm_up,
        steps=steps,
        threads=setting.threads,
        **changes,
    )


def train(setting, group, variants, job, ranks, place=None):
    """The rows of a group of training runs; `place`: a context manager, by default the machine itself."""
    with place or network.alone(ranks) as where:
        return complete(runner.measure(setting, group, variants, job, where))


def complete(rows):
    """With what follows from the figures of rows that train the same samples a rank, and summaries."""
    for row in rows:
        for figures in row["rounds"]:
            figures["samples_per_second"] = row["job"]["batch"] * row["ranks"] / figures["step_seconds"]
    add_flops(rows)
    add_traffic(rows)
    return results.summarise(rows)


def add_flops(rows):
    """10^12 floating point operations a second, of all ranks together, by the figures of docs/models.md: fsdp.cpp
    counts them, and they are those of the same model on the other sides. Hardware: with what activation checkpointing
    computes again."""
    counted = next((row for row in rows if "flops" in row), None)
    for row in rows if counted else ():
        for figures in row["rounds"]:
            each = 1e-12 * row["ranks"] / figures["step_seconds"]
            figures["tflops"] = each * counted["flops"]
            if row["job"]["checkpointing"]:
                figures["hardware_tflops"] = each * (counted["flops"] + counted["recomputed_flops"])


def columns_of(rows, more=()):
    """Of the table of a group of training runs."""
    recomputed = any("hardware_tflops" in row["figures"] for row in rows)
    return (*TRAINING_COLUMNS, *(HARDWARE_COLUMNS if recomputed else ()), *more)


# How often each element of a parameter goes over the network, times the number of ranks less one, by the paper's
# formulas: gathers, reductions. Hybrid strategies have other groups.
TIMES_SENT = {"full_shard": (2, 1), "shard_grad_op": (1, 1), "no_shard": (0, 2)}


def add_traffic(rows):
    """sent_of_formula: bytes sent, as multiples of the paper's formula."""
    for row in rows:
        times = TIMES_SENT.get(row["job"]["strategy"])
        if times is None or row["ranks"] == 1 or row["side"] == PLAIN:
            continue
        gathers, reductions = times
        width = 2 if row["dtype"] == "bf16" else 4
        for figures in row["rounds"]:
            if "sent_mib" in figures:
                formula = (row["ranks"] - 1) * row["parameters"] * (gathers * width + reductions * 4) / 2**20
                figures["sent_of_formula"] = figures["sent_mib"] / formula


@dataclasses.dataclass(frozen=True)
class Call:
    """What an experiment is asked for."""

    setting: runner.Setting
    budget: str
    ranks: tuple

    @property
    def fewest_ranks(self):
        """That share anything, if there are any."""
        return min((ranks for ranks in self.ranks if ranks > 1), default=1)

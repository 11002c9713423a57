"""`fsdp train` trains sequence-to-sequence models and image classifiers as transformers' models, and a DeepViT in plain
PyTorch, train in one process: the same losses, gradient norms and weights. Targets have padding; images are digits of
MNIST, and batch norm takes its statistics from the batch of one rank."""

import itertools
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForImageClassification,
    RegNetConfig,
    T5Config,
    T5ForConditionalGeneration,
    get_scheduler,
)

from fsdp_train import fsdp_train
from torch_deepvit import DeepViT
from torch_fsdp_reference import rank_batches

ROOT = Path(__file__).resolve().parents[2]
SOURCE, TARGET, VOCABULARY, PADDING = 11, 7, 97, 0
T5 = T5Config(
    vocab_size=VOCABULARY,
    d_model=32,
    d_kv=8,
    d_ff=44,
    num_layers=2,
    num_heads=4,
    dropout_rate=0.0,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    decoder_start_token_id=0,
)
REGNET = RegNetConfig(
    num_channels=1,
    embedding_size=8,
    hidden_sizes=[12, 24],
    depths=[1, 2],
    groups_width=4,
    layer_type="y",
    num_labels=10,
)
# Without a bias of keys, whose gradient is 0 but for rounding, which AdamW makes steps of.
DEEPVIT = dict(
    model_type="deepvit",
    architectures=["DeepViT"],
    image_size=28,
    patch_size=7,
    num_channels=1,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=36,
    hidden_act="gelu",
    layer_norm_eps=1e-5,
    qkv_bias=False,
    num_labels=10,
)
STRATEGIES = (
    ("full_shard", 1, {}),
    ("full_shard", 3, {"wrap_policy": "auto_units"}),
    ("shard_grad_op", 2, {}),
    ("no_shard", 2, {}),
    ("hybrid_shard", 4, {"sharding_factor": 2}),
    ("hybrid_shard_zero2", 4, {"sharding_factor": 2, "gradient_accumulation_steps": 2}),
)
# What the order of additions changes in eight steps, relative; several times what is seen. Batch norms
# over few images make more of it. DeepViT: losses to 1e-6, weights to 1.5e-5 of their norm.
TOLERANCE = {"t5": 2e-5, "regnet": 1e-4, "deepvit": 1e-5}


class ReferenceDeepViT(DeepViT):
    """What transformers' image classifiers have, for the formulas of torch_deepvit."""

    @classmethod
    def from_pretrained(cls, folder):
        model = cls(json.loads((Path(folder) / "config.json").read_text()))
        model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
        return model

    def forward(self, pixel_values, labels):
        return types.SimpleNamespace(loss=torch.nn.functional.cross_entropy(super().forward(pixel_values), labels))


class TokenPairs(torch.utils.data.Dataset):
    """Rows of a token file: a source, and a target behind it."""

    def __init__(self, path):
        rows = numpy.fromfile(path, dtype=numpy.uint16).astype(numpy.int64)
        self.rows = torch.from_numpy(rows).view(-1, SOURCE + TARGET)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    @staticmethod
    def inputs(rows):
        source, target = rows[:, :SOURCE], rows[:, SOURCE:]
        return dict(
            input_ids=source, attention_mask=source != PADDING, labels=target.masked_fill(target == PADDING, -100)
        )


class Digits(torch.utils.data.Dataset):
    def __init__(self, path):
        tensors = load_file(path)
        self.images, self.labels = tensors["images"].float() / 255, tensors["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    @staticmethod
    def inputs(batch):
        return dict(pixel_values=batch[0], labels=batch[1])


def make_pairs(path, samples, seed):
    random = numpy.random.default_rng(seed)
    rows = (1 + (VOCABULARY - 1) * random.random((samples, SOURCE + TARGET)) ** 3).astype(numpy.uint16)
    for row, source, target in zip(
        rows, random.integers(1, SOURCE + 1, samples), random.integers(1, TARGET + 1, samples)
    ):
        row[source:SOURCE] = PADDING
        row[SOURCE + target :] = PADDING
    rows.tofile(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5).save_pretrained(folder / "t5")
    AutoModelForImageClassification.from_config(REGNET).save_pretrained(folder / "regnet")
    make_pairs(folder / "pairs.bin", 60, seed=0)
    make_pairs(folder / "eval_pairs.bin", 13, seed=1)
    subprocess.run([sys.executable, ROOT / "scripts/prepare_images.py", "--output", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def model_folders(fsdp_program, folder, tmp_path_factory):
    """By kind. transformers has no DeepViT: its folder is what the program has trained from nothing and saved."""
    config = dict(
        model=DEEPVIT,
        dataset=str(folder / "mnist_train.safetensors"),
        train_batch_size=8,
        max_steps=2,
        learning_rate=1e-3,
        seed=3,
        save_final=True,
        dtype="fp32",
    )
    written = fsdp_train(fsdp_program, config, 2, tmp_path_factory.mktemp("deepvit")).final
    return {"t5": folder / "t5", "regnet": folder / "regnet", "deepvit": written}


def base_config(folder, kind):
    config = dict(
        dtype="fp32",
        train_batch_size=3,
        eval_batch_size=50,
        max_steps=8,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.1,
        clip_grad_norm=0.5,
        seed=7,
        shuffle=True,
        gradient_accumulation_steps=1,
        do_eval=True,
        save_final=True,
    )
    if kind == "t5":
        return config | dict(
            dataset=str(folder / "pairs.bin"),
            eval_dataset=str(folder / "eval_pairs.bin"),
            max_seq_length=SOURCE,
            max_target_length=TARGET,
        )
    return config | dict(
        train_batch_size=8,
        dataset=str(folder / "mnist_train.safetensors"),
        eval_dataset=str(folder / "mnist_eval.safetensors"),
    )


def global_loss(model, data, batches):
    """Of a model whose samples are independent: all batches of a step as one."""
    loss = model(**data.inputs(torch.cat(batches))).loss
    loss.backward()
    return loss.item()


def loss_batch_by_batch(model, data, batches, accumulation_steps):
    """Of a model with batch norm. Running statistics are those of the first rank."""
    total = 0
    for index, batch in enumerate(batches):
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        loss = model(**data.inputs(batch)).loss / len(batches)
        loss.backward()
        total += loss.item()
        if index >= accumulation_steps:
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    return total


def train_alone(model, data, config, world_size):
    """Losses and gradient norms of training with plain PyTorch."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"], weight_decay=config["weight_decay"])
    schedule = get_scheduler(config["lr_scheduler_type"], optimizer, config["warmup_steps"], config["max_steps"])
    ranks = [rank_batches(data, config, rank, world_size) for rank in range(world_size)]
    losses, norms = [], []
    for _ in range(config["max_steps"]):
        passes = config["gradient_accumulation_steps"]
        batches = [batch for rank in ranks for batch in itertools.islice(rank, passes)]
        optimizer.zero_grad()
        is_of_images = isinstance(data, Digits)
        losses.append(
            loss_batch_by_batch(model, data, batches, passes) if is_of_images else global_loss(model, data, batches)
        )
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip_grad_norm"]).item())
        optimizer.step()
        schedule.step()
    return losses, norms


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    return model(
        **data.inputs(torch.utils.data.default_collate([data[index] for index in range(len(data))]))
    ).loss.item()


def distance(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


KINDS = {
    "t5": (TokenPairs, T5ForConditionalGeneration),
    "regnet": (Digits, AutoModelForImageClassification),
    "deepvit": (Digits, ReferenceDeepViT),
}


@pytest.mark.parametrize("strategy, world_size, changes", STRATEGIES, ids=[f"{s}-{w}" for s, w, _ in STRATEGIES])
@pytest.mark.parametrize("kind", ["t5", "regnet", "deepvit"])
@pytest.mark.usefixtures("communicator")
def test_matches_single_process(fsdp_program, folder, model_folders, tmp_path, kind, strategy, world_size, changes):
    config = (
        base_config(folder, kind) | {"model_path": str(model_folders[kind]), "sharding_strategy": strategy} | changes
    )
    dataset, model_class, tolerance = *KINDS[kind], TOLERANCE[kind]
    model = model_class.from_pretrained(model_folders[kind])
    losses, norms = train_alone(model, dataset(config["dataset"]), config, world_size)
    run = fsdp_train(fsdp_program, config, world_size, tmp_path)
    assert run.losses == pytest.approx(losses, rel=tolerance)
    assert [row["grad_norm"] for row in run.steps] == pytest.approx(norms, rel=10 * tolerance)
    assert run.eval_loss == pytest.approx(evaluate(model, dataset(config["eval_dataset"])), rel=tolerance)
    saved = model_class.from_pretrained(run.final).state_dict()
    far = {
        name: distance(saved[name], tensor)
        for name, tensor in model.state_dict().items()
        if distance(saved[name], tensor) > 10 * tolerance
    }
    assert not far, f"tensors differ by more than {10 * tolerance} of their norm: {far}"


def test_learns_digits(fsdp_program, folder, tmp_path):
    """The example config, which starts from nothing, and takes the data that are there."""
    config = json.loads((ROOT / "examples/mnist.json").read_text()) | {
        "dataset": str(folder / "mnist_train.safetensors"),
        "eval_dataset": str(folder / "mnist_eval.safetensors"),
    }
    run = fsdp_train(fsdp_program, config, 2, tmp_path)
    assert run.losses[0] == pytest.approx(2.3, abs=0.4)
    assert run.eval_loss < 0.4
    model, data = AutoModelForImageClassification.from_pretrained(run.final).eval(), Digits(config["eval_dataset"])
    with torch.no_grad():
        predicted = model(pixel_values=data.images).logits.argmax(-1)
    assert (predicted == data.labels).float().mean() > 0.9

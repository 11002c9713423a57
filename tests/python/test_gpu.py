"""Ranks that share one GPU, each a process of its own, over Gloo, and one rank over NCCL: beside one rank, and beside
the CPU. Without a GPU, the plainest of these tests run on the CPU."""

import json
import os
import sys

import pytest
import torch
from torch import nn

from conftest import SOURCE_DIR
from package_ranks import run_ranks
from ports import free_port

sys.path.insert(0, str(SOURCE_DIR / "benchmarks"))
import ranks as rank_processes

HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
# Tests that are known on CPUs from elsewhere; FSDP_TEST_DEVICE=cpu lets these run there, too.
on_the_gpu = pytest.mark.parametrize(
    "device", ["cpu"] if os.environ.get("FSDP_TEST_DEVICE") == "cpu" else [pytest.param("cuda", marks=needs_gpu)]
)

MODEL = dict(
    model_type="llama",
    vocab_size=499,
    hidden_size=96,
    intermediate_size=257,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
CONFIG = dict(
    model=MODEL,
    dataset="dummy:64",
    max_seq_length=32,
    dtype="fp32",
    max_steps=6,
    learning_rate=1e-2,
    clip_grad_norm=0.5,
    seed=3,
)
GLOBAL_BATCH = 8
VARIANTS = {
    "flat": dict(use_orig_params=False),
    "recomputed": dict(activation_checkpointing=True),
    "offload": dict(cpu_offload=True),
    "memory kept": dict(keep_memory=True),
    "shard_grad_op": dict(sharding_strategy="shard_grad_op"),
    "fused loss": dict(fused_loss=True),
}


@pytest.fixture
def train(fsdp_program, tmp_path):
    """Trains over ranks that are hosts of one rank each, so that all of them use the first GPU, and returns the losses
    and gradient norms of the steps. The samples of a step are the same for any number of ranks."""

    def run(ranks, folder=None, **keys):
        folder = folder or tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        train_ranks(fsdp_program, folder, ranks, keys)
        return losses_and_norms(folder)

    return run


def train_ranks(program, folder, ranks, keys):
    folder.mkdir()
    config = {**CONFIG, "train_batch_size": GLOBAL_BATCH // ranks, "output_dir": str(folder / "output"), **keys}
    (folder / "config.json").write_text(json.dumps(config))
    command = [program, "train", folder / "config.json"]
    with free_port() as port:
        rank_processes.outputs(command, ranks, port, hosts=[([], {})] * ranks, timeout=200)


def losses_and_norms(folder):
    rows = [json.loads(line) for line in (folder / "output/metrics.jsonl").read_text().splitlines()]
    steps = [[row["loss"], row["grad_norm"]] for row in rows if "loss" in row]
    assert len(steps) in (3, CONFIG["max_steps"]), rows
    return torch.tensor(steps, dtype=torch.float64)


@on_each_device
def test_ranks_that_share_a_device_train_as_one(train, device):
    keys = dict(device=device, comm_backend="gloo")
    alone = train(1, **keys)
    for ranks in (2, 4):
        torch.testing.assert_close(train(ranks, **keys), alone, rtol=1e-4, atol=0)


@on_the_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_on_a_device_train_as_one_rank(train, device, variant):
    keys = dict(device=device, comm_backend="gloo", **VARIANTS[variant])
    torch.testing.assert_close(train(2, **keys), train(1, **keys), rtol=1e-4, atol=0)


@on_the_gpu
def test_hybrid_shards_on_a_device_train_as_one(train, device):
    keys = dict(device=device, comm_backend="gloo")
    hybrid = train(4, sharding_strategy="hybrid_shard", sharding_factor=2, **keys)
    torch.testing.assert_close(hybrid, train(1, **keys), rtol=1e-4, atol=0)


@on_the_gpu
def test_low_precision_on_a_device(train, device):
    """Losses in half precision, with and without parts in fp32, stay near those in fp32."""
    exact = train(2, device=device, comm_backend="gloo", learning_rate=1e-3)
    for keys in (dict(dtype="bf16"), dict(dtype="bf16", mixed_precision_reduce_dtype="fp32"), dict(dtype="fp16")):
        low = train(2, device=device, comm_backend="gloo", learning_rate=1e-3, **keys)
        torch.testing.assert_close(low[:, 0], exact[:, 0], rtol=1e-2, atol=0)


@on_the_gpu
def test_run_on_a_device_resumes_with_another_number_of_ranks(train, tmp_path, device):
    keys = dict(device=device, comm_backend="gloo", lr_scheduler_type="constant")
    whole = train(1, **keys)
    train(2, **keys, max_steps=3, save_steps=3, folder=tmp_path / "kept")
    rest = train(1, **keys, resume_from_checkpoint=str(tmp_path / "kept/output/checkpoint-3"))
    torch.testing.assert_close(rest, whole[3:], rtol=1e-4, atol=0)


@needs_gpu
def test_gpu_trains_as_the_cpu(train):
    torch.testing.assert_close(train(1, device="cuda"), train(1, device="cpu"), rtol=1e-3, atol=0)


@pytest.fixture
def with_nccl(build_dir):
    """For tests that a build without NCCL's headers cannot run."""
    if "Nccl_HEADERS_COMPILE:INTERNAL=1" not in (build_dir / "CMakeCache.txt").read_text():
        pytest.skip("built without NCCL's headers")


@needs_gpu
@pytest.mark.usefixtures("with_nccl")
def test_one_rank_over_nccl_trains_as_over_gloo(train):
    assert torch.equal(train(1, device="cuda", comm_backend="nccl"), train(1, device="cuda", comm_backend="gloo"))


@needs_gpu
@pytest.mark.usefixtures("with_nccl")
def test_nccl_says_that_ranks_share_a_gpu(fsdp_program, tmp_path):
    keys = dict(device="cuda", comm_backend="nccl")
    with pytest.raises(rank_processes.RankError) as failed:
        train_ranks(fsdp_program, tmp_path / "run", 2, keys)
    assert any("Duplicate GPU" in error for error in failed.value.errors), failed.value.errors


# -- the Python package --


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(101, 48)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(48, 4, 97, 0.0, batch_first=True) for _ in range(3))
        self.head = nn.Linear(48, 101)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens.flatten())


def steps_of(net, tokens, optimizer):
    """Losses and gradient norms of some steps."""
    rows = []
    for step in range(5):
        loss = net(tokens[step])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        optimizer.step()
        optimizer.zero_grad()
        rows.append([loss.item(), norm.item()])
    return rows


def tokens_of(rank, device):
    torch.manual_seed(17 + rank)
    return torch.randint(101, (5, 2, 11)).to(device)


def sharded_steps(rank, size, device, keys):
    from fsdp_cpp import CPUOffloadPolicy, EngineOptions, MixedPrecisionPolicy, fully_shard

    options = dict(engine_options=EngineOptions(backend="gloo"))
    if keys.get("low"):
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if keys.get("offload"):
        options["offload_policy"] = CPUOffloadPolicy()
    mesh = torch.distributed.init_device_mesh(device, (size,))
    net = Net() if keys.get("offload") else Net().to(device)
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    rows = steps_of(net, tokens_of(rank, device), optimizer)
    return rows, {name: value.full_tensor().cpu() for name, value in net.state_dict().items()}


@on_the_gpu
@pytest.mark.parametrize("keys", [{}, {"low": True}, {"offload": True}], ids=["fp32", "bf16", "offload"])
def test_package_on_a_device_trains_as_one_process(device, keys):
    size = 2
    net = Net().to(device)
    batches = torch.cat([tokens_of(rank, device) for rank in range(size)], 1)
    expected = torch.tensor(steps_of(net, batches, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)))
    results = run_ranks(size, sharded_steps, device, keys)
    mean = torch.tensor([rows for rows, _ in results]).mean(0)
    torch.testing.assert_close(mean, expected, rtol=5e-2 if keys.get("low") else 1e-4, atol=1e-5)
    if keys.get("low"):
        return  # five steps apart, weights differ by more than their rounding
    for name, value in net.state_dict().items():
        torch.testing.assert_close(results[0][1][name], value.cpu(), rtol=1e-3, atol=1e-4, msg=name)

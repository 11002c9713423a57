"""Trains a Hugging Face model with PyTorch the way `fsdp train` does it, for tests and benchmarks to compare with.

It reads the same config keys and token files, and is written on PyTorch's and transformers' own parts:
DistributedSampler, get_scheduler, AdamW, GradScaler, DDP, FSDP1, FSDP2. A run is over Gloo, with weights kept in fp32.

Ranks are forks of a process that has imported what they need and done nothing else: those of a process that has
trained or tested before can wait for ever for a lock that one of its threads had.
"""

import dataclasses
import datetime
import functools
import itertools
import multiprocessing
import tempfile
import time
import warnings
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import AutoModelForCausalLM, LlamaConfig, get_scheduler
from transformers.models.llama import modeling_llama
from transformers.utils import logging

logging.disable_progress_bar()
warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated")

# `single` is one process that goes through every rank's batches itself, with no sharding and no communication.
METHODS = ("single", "ddp", "fsdp1", "fsdp2")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Keys that change how the trainer communicates, but no number beyond the order of additions.
NUMBERS_STAY = {"sync_each_batch", "all_reduce_each_batch"}

# Most of the imports' seconds. This module is not found by a fork server of Python 3.11, which ignores sys.path.
PRELOADED = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "transformers.integrations",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
]
SECONDS_TO_WAIT = 120  # of a rank for another one
SECONDS_TO_TRAIN = 600

# The trainer's defaults, for the keys that matter here; but for dtype, which the trainer has as bf16.
DEFAULTS = dict(
    eval_dataset=None,
    max_seq_length=1024,
    train_batch_size=4,
    eval_batch_size=4,
    shuffle=True,
    seed=42,
    max_steps=100,
    gradient_accumulation_steps=1,
    learning_rate=5e-5,
    lr_scheduler_type="linear",
    warmup_steps=0,
    weight_decay=0.0,
    adam_beta1=0.9,
    adam_beta2=0.999,
    adam_epsilon=1e-8,
    clip_grad_norm=1.0,
    sharding_strategy="full_shard",
    wrap_policy="transformer",
    wrap_classes=[],
    size_min_params=30_000_000,
    use_orig_params=True,
    do_eval=False,
    dtype="fp32",
    mixed_precision_reduce_dtype=None,
    sharding_factor=None,
    reshard_after_forward=None,
    gradient_divide_factor=None,
    fp16_init_scale=65536.0,
    fp16_growth_interval=2000,
)


@dataclasses.dataclass
class Run:
    losses: list  # mean over the global batch, one a step
    grad_norms: list
    learning_rates: list
    loss_scales: list  # that the step used
    skipped: list  # whether a gradient overflowed
    step_seconds: list  # of rank 0
    eval_loss: float | None
    peak_memory_bytes: int  # of the rank that needed most
    start_memory_bytes: int  # of that, what a rank held before it made the model
    weights: dict | None  # whole tensors by Hugging Face name


def make_model(folder, config, seed=0):
    """Writes the causal language model of a transformers config, with random fp32 weights, to `folder`."""
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def make_llama(folder, seed=0, **sizes):
    return make_model(folder, LlamaConfig(**sizes), seed)


def make_tokens(path, count, vocab_size, seed=0):
    """Writes `count` token ids with a skewed distribution, so that there is something to learn."""
    uniform = numpy.random.default_rng(seed).random(count)
    (vocab_size * uniform**3).astype(numpy.uint16 if vocab_size <= 1 << 16 else numpy.uint32).tofile(path)
    return path


class TokenFile(Dataset):
    """Sample i is tokens [i*length, (i+1)*length)."""

    def __init__(self, path, length, vocab_size):
        tokens = numpy.fromfile(path, dtype=numpy.uint16 if vocab_size <= 1 << 16 else numpy.uint32)
        samples = len(tokens) // length
        self.samples = torch.from_numpy(tokens[: samples * length].astype(numpy.int64)).view(samples, length)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def rank_batches(dataset, config, rank, world_size):
    """The batches of one rank, epoch after epoch; an epoch's incomplete last global batch is dropped."""
    sampler = DistributedSampler(
        dataset, world_size, rank, shuffle=config["shuffle"], seed=config["seed"], drop_last=True
    )
    loader = DataLoader(dataset, config["train_batch_size"], sampler=sampler, drop_last=True)
    whole = len(loader) - len(loader) % config["gradient_accumulation_steps"]
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from itertools.islice(loader, whole)


def wrap_classes(config):  # of a Llama
    names = ["LlamaDecoderLayer", *config["wrap_classes"]]
    return {getattr(modeling_llama, name, None) or getattr(torch.nn, name) for name in names}


def mesh_of(config):
    """Copies of the model x ranks that share one, for a hybrid strategy."""
    if not config["sharding_strategy"].startswith("hybrid"):
        return None
    shards = config["sharding_factor"]
    return init_device_mesh("cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("replicate", "shard"))


def fsdp1_strategy(config):
    name = config["sharding_strategy"].upper()
    return ShardingStrategy["_HYBRID_SHARD_ZERO2" if name == "HYBRID_SHARD_ZERO2" else name]


def dtypes_of(config):
    """dtype of compute, and of reduction."""
    return DTYPES[config["dtype"]], DTYPES[config["mixed_precision_reduce_dtype"] or config["dtype"]]


def wrap_fsdp1(model, config, prefetch):
    policies = {
        "none": None,
        "size": functools.partial(size_based_auto_wrap_policy, min_num_params=config["size_min_params"]),
        "transformer": functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=wrap_classes(config)),
    }
    return FullyShardedDataParallel(
        model,
        sharding_strategy=fsdp1_strategy(config),
        device_mesh=mesh_of(config),
        mixed_precision=None if config["dtype"] == "fp32" else MixedPrecision(*dtypes_of(config)),
        auto_wrap_policy=policies[config["wrap_policy"]],
        use_orig_params=config["use_orig_params"],
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE if prefetch else None,
        limit_all_gathers=prefetch,
        device_id=torch.device("cpu"),
    )


def wrap_fsdp2(model, config):
    reshard = config["reshard_after_forward"]
    if reshard is None:
        reshard = config["sharding_strategy"] in ("full_shard", "hybrid_shard")
    common = dict(mesh=mesh_of(config))
    if config["dtype"] != "fp32":
        common["mp_policy"] = MixedPrecisionPolicy(*dtypes_of(config))
    classes = tuple(wrap_classes(config)) if config["wrap_policy"] == "transformer" else ()
    for module in model.modules():
        if isinstance(module, classes):
            fully_shard(module, reshard_after_forward=reshard, **common)
    return fully_shard(model, reshard_after_forward=False, **common)


class LowPrecision(torch.nn.Module):
    """Parameters are rounded to `dtype` where they are used; their gradients come back in fp32."""

    def __init__(self, inner, dtype):
        super().__init__()
        self.inner, self.dtype, self.config = inner, dtype, inner.config

    def forward(self, **inputs):
        rounded = {name: tensor.to(self.dtype) for name, tensor in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, rounded, kwargs=inputs)


def wrap(model, method, config, prefetch):
    if method == "ddp":
        return DistributedDataParallel(model)
    if method == "fsdp1":
        return wrap_fsdp1(model, config, prefetch)
    if method == "fsdp2":
        return wrap_fsdp2(model, config)
    return model if config["dtype"] == "fp32" else LowPrecision(model, DTYPES[config["dtype"]])


def clip(model, parameters, max_norm):
    bound = max_norm or float("inf")
    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(bound)
    norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def whole_weights(model):
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return {name: tensor.detach().clone() for name, tensor in clean_names(model)}
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
        for name, tensor in clean_names(model)
    }


def clean_names(model):
    for name, tensor in model.named_parameters():
        yield name.replace("_fsdp_wrapped_module.", "").removeprefix("module.").removeprefix("inner."), tensor


def mean_over_ranks(value):
    value = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value.item()


def evaluate(model, config):
    """Mean loss of all predicted tokens."""
    data = TokenFile(config["eval_dataset"], config["max_seq_length"], model.config.vocab_size)
    with torch.no_grad():
        losses = [model(input_ids=sample[None], labels=sample[None]).loss.item() for sample in data]
    return sum(losses) / len(losses)


def status_bytes(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


class Training:
    """One rank's training; with `single`, that of all ranks of a world of `world_size`."""

    def __init__(self, config, method, rank, world_size, prefetch):
        self.config = config
        plain = AutoModelForCausalLM.from_pretrained(config["model_path"], dtype=torch.float32)
        plain.config.use_cache = False
        plain.train()
        dataset = TokenFile(config["dataset"], config["max_seq_length"], plain.config.vocab_size)
        ranks = range(world_size) if method == "single" else [rank]
        self.batches = [rank_batches(dataset, config, one, world_size) for one in ranks]
        self.model = wrap(plain, method, config, prefetch)
        self.parameters = list(self.model.parameters())
        scales = "fp16" in (config["dtype"], config["mixed_precision_reduce_dtype"])
        sharded_scaler = scales and method == "fsdp1"  # which fused AdamW does not work with
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=config["learning_rate"],
            betas=(config["adam_beta1"], config["adam_beta2"]),
            eps=config["adam_epsilon"],
            weight_decay=config["weight_decay"],
            fused=not sharded_scaler,
        )
        self.scaler = (ShardedGradScaler if sharded_scaler else torch.amp.GradScaler)(
            "cpu", init_scale=config["fp16_init_scale"], growth_interval=config["fp16_growth_interval"], enabled=scales
        )
        schedule = config["lr_scheduler_type"]
        self.schedule = get_scheduler(
            "constant_with_warmup" if schedule == "constant" else schedule,
            self.optimizer,
            config["warmup_steps"],
            config["max_steps"],
        )

    def step(self):
        """Returns loss (mean over the global batch), gradient norm before clipping, learning rate, loss scale,
        skipped."""
        passes = self.config["gradient_accumulation_steps"]
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for source in self.batches:
            for tokens in itertools.islice(source, passes):
                loss = self.model(input_ids=tokens, labels=tokens).loss / passes
                self.scaler.scale(loss).backward()
                total += loss.detach() / len(self.batches)
        self.divide_gradients()
        self.scaler.unscale_(self.optimizer)
        norm = clip(self.model, self.parameters, self.config["clip_grad_norm"])
        rate, scale = self.schedule.get_last_lr()[0], self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < scale
        if not skipped:  # as transformers.Trainer does
            self.schedule.step()
        return mean_over_ranks(total), float(norm), rate, scale, skipped

    def divide_gradients(self):
        """One process holds the sum over the ranks, of which those that are several have made the mean."""
        for parameter in self.parameters:
            if len(self.batches) > 1:
                parameter.grad /= self.config["gradient_divide_factor"] or len(self.batches)


def run_rank(rank, world_size, method, config, options, result):
    torch.set_num_threads(options["threads"])
    if method != "single":
        dist.init_process_group(
            "gloo",
            init_method=options["meeting_place"],
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=SECONDS_TO_WAIT),
        )
    start_memory = status_bytes("VmRSS") - status_bytes("RssFile")
    training = Training(config, method, rank, world_size, options["prefetch"])
    rows, seconds = [], []
    for _ in range(config["max_steps"]):
        start = time.perf_counter()
        rows.append(training.step())
        seconds.append(time.perf_counter() - start)
    memory = torch.tensor([status_bytes("VmHWM") - status_bytes("RssFile"), start_memory])
    if method != "single":
        dist.all_reduce(memory, dist.ReduceOp.MAX)
    weights = whole_weights(training.model) if options["keep_weights"] else None
    eval_loss = evaluate(training.model, config) if config["do_eval"] and method == "single" else None
    if rank == 0:
        figures = map(list, zip(*rows))
        torch.save(dataclasses.asdict(Run(*figures, seconds, eval_loss, *memory.tolist(), weights)), result)
    if method != "single":
        dist.barrier()
        dist.destroy_process_group()


def train(config, world_size, method, threads=1, prefetch=False, keep_weights=True):
    """Trains as `config` says. `prefetch`: PyTorch's default prefetching, where the method has a choice."""
    unknown = (
        set(config)
        - set(DEFAULTS)
        - NUMBERS_STAY
        - {"model_path", "dataset", "output_dir", "save_final", "logging_steps"}
    )
    if method != "single" and config.get("gradient_divide_factor"):
        unknown.add("gradient_divide_factor")
    if method not in METHODS or unknown:
        raise ValueError(f"the reference does not know method {method}, or with it the keys {sorted(unknown)}")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "run.pt"
        options = dict(
            threads=threads,
            prefetch=prefetch,
            keep_weights=keep_weights,
            meeting_place=f"file://{folder}/meeting_place",
        )
        run_ranks(
            (world_size, method, {**DEFAULTS, **config}, options, result), 1 if method == "single" else world_size
        )
        return Run(**torch.load(result))


def run_ranks(arguments, count):
    """Runs run_rank in processes of their own. Raises what one of them raised, or TimeoutError."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    ranks = torch.multiprocessing.start_processes(
        run_rank, arguments, nprocs=count, join=False, start_method="forkserver"
    )
    try:
        deadline = time.monotonic() + SECONDS_TO_TRAIN
        while not ranks.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} ranks of PyTorch have not trained in {SECONDS_TO_TRAIN} s")
    finally:
        for process in ranks.processes:
            if process.is_alive():
                process.kill()

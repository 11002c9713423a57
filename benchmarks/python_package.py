#!/usr/bin/env python3
"""The package fsdp_cpp beside PyTorch's FSDP2, FSDP1 and DDP, from Python.

Two measurements, each over ranks that are processes of this host with one thread each:

host    A chain of blocks of ten small parameters, each block a unit: the time that a unit adds to forward and backward,
        of clip_grad_norm_ and of a step of AdamW. All variants live in the same processes and take turns step by step.
        Clipping is timed in bursts of ten calls, so that ranks that come late do not count.
model   Steps of SmolLM2-135M of transformers with random weights: forward, backward, clipping, AdamW (fused). Each
        variant runs in processes of its own, in turns. Memory is the peak of a rank's proportional set size (pages that
        ranks share count in parts) in the second step, which is not timed, because looking takes time.

Prints one JSON object a line. FSDP_CPP_LIBRARY names the package's library if it is not installed.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import threading
import time
import warnings

import ranks

SOURCE = pathlib.Path(__file__).resolve().parents[1]
BURST = 10
FEW, MANY = 4, 24  # blocks; what one adds is the slope between
WIDTH, ROWS = 32, 4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("host", "model"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=None, help="timed steps; default 30 (host), 4 (model)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each variant of model")
    parser.add_argument("--tokens", type=int, default=64, help="of the one sequence of each rank and step")
    parser.add_argument("--variants", nargs="*", default=list(MODEL_VARIANTS), help="of model")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps is None:
        options.steps = 30 if options.what == "host" else 4
    if "RANK" in os.environ:
        run_rank(options)
    elif options.what == "host":
        print(start(options, []), end="", flush=True)
    else:
        compare_models(options)


def start(options, more):
    """Runs this script on each rank and returns what rank 0 prints."""
    command = [sys.executable, __file__, options.what, "--steps", options.steps, "--tokens", options.tokens, *more]
    paths = [str(SOURCE / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths)}
    return ranks.outputs(command, options.ranks, 20000 + os.getpid() % 20000, variables=variables)[0]


def run_rank(options):
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    (measure_host if options.what == "host" else measure_model)(options)
    dist.barrier()
    dist.destroy_process_group()


# -- sharding, by each library --


def by_fsdp2(model, blocks):
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block)
    return fully_shard(model)


def by_package(backend):
    def shard(model, blocks):
        from fsdp_cpp import EngineOptions, fully_shard

        options = EngineOptions(backend=backend)
        for block in blocks:
            fully_shard(block, engine_options=options)
        return fully_shard(model, engine_options=options)

    return shard


def by_fsdp1(model, blocks):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = set(blocks)

    def policy(module, recurse, nonwrapped_numel):
        return recurse or module in units

    return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))


def by_ddp(model, blocks):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


MODEL_VARIANTS = {
    "fsdp_cpp, shared memory": by_package("shm"),
    "fsdp_cpp, Gloo": by_package("gloo"),
    "FSDP2": by_fsdp2,
    "FSDP1": by_fsdp1,
    "DDP": by_ddp,
}
HOST_VARIANTS = {"plain": lambda model, blocks: model, **MODEL_VARIANTS}


def clip(model, parameters, max_norm):
    """Clips as the users of each library do."""
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(max_norm)
    return nn.utils.clip_grad_norm_(parameters, max_norm)


# -- host time --


def make_blocks(count):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x):
            for layer in self.layers:
                x = nn.functional.relu(layer(x))
            return self.norm(x)

    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count)))


def measure_host(options):
    import torch
    import torch.distributed as dist

    models = {}
    for name, shard in HOST_VARIANTS.items():
        for count in (FEW, MANY):
            model = make_blocks(count)
            models[name, count] = shard(model, list(model))
    parameters = {key: list(model.parameters()) for key, model in models.items()}
    optimizers = {key: torch.optim.AdamW(own, lr=1e-4) for key, own in parameters.items()}
    x = torch.randn(ROWS, WIDTH)
    times = {key: {"pass": [], "clip": [], "step": []} for key in models}
    for step in range(options.steps + 5):
        for key, model in models.items():
            seconds = times[key] if step >= 5 else {"pass": [], "clip": [], "step": []}
            dist.barrier()
            timed(seconds["pass"], lambda model=model: model(x).sum().backward())
            dist.barrier()
            timed(seconds["clip"], lambda key=key, model=model: burst(model, parameters[key]))
            timed(seconds["step"], optimizers[key].step)
            optimizers[key].zero_grad()
    if dist.get_rank() == 0:
        report_host(times)


def burst(model, parameters):
    for call in range(BURST):
        clip(model, parameters, 1.0 / (call + 2))  # each call has to scale


def timed(seconds, work):
    begin = time.perf_counter()
    work()
    seconds.append(time.perf_counter() - begin)


def report_host(times):
    def median(name, count, what):
        return statistics.median(times[name, count][what]) * 1e3

    per_unit = {name: (median(name, MANY, "pass") - median(name, FEW, "pass")) / (MANY - FEW) for name in HOST_VARIANTS}
    for name in HOST_VARIANTS:
        print(
            json.dumps(
                {
                    "variant": name,
                    "added_ms_per_unit": round(per_unit[name] - per_unit["plain"], 4),
                    "pass_ms": round(median(name, MANY, "pass"), 3),
                    "clip_ms": round(median(name, MANY, "clip") / BURST, 3),
                    "adamw_ms": round(median(name, MANY, "step"), 3),
                }
            )
        )


# -- a model --


def compare_models(options):
    results = {name: [] for name in options.variants}
    for _ in range(options.turns):
        for name in options.variants:
            results[name].append(json.loads(start(options, ["--variant", name])))
    for name, turns in results.items():
        seconds = [second for turn in turns for second in turn["seconds"]]
        print(
            json.dumps(
                {
                    "variant": name,
                    "step_s": round(statistics.median(seconds), 4),
                    "range_s": [round(min(seconds), 4), round(max(seconds), 4)],
                    "peak_mib": round(max(turn["peak_mib"] for turn in turns)),
                    "loss": turns[0]["loss"],
                }
            ),
            flush=True,
        )


def measure_model(options):
    import torch
    import torch.distributed as dist
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    model = MODEL_VARIANTS[options.variant](model, list(model.model.layers))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    torch.manual_seed(1 + dist.get_rank())
    batches = [torch.randint(config.vocab_size, (1, options.tokens)) for _ in range(options.steps + 2)]
    seconds = []
    for number, batch in enumerate(batches):
        if number == 1:
            memory = PeakMemory()
        dist.barrier()
        begin = time.perf_counter()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        clip(model, parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
        if number == 1:
            peak = memory.stop()
    peaks = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, peak)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds[2:], "peak_mib": max(peaks), "loss": round(loss.item(), 6)}))


class PeakMemory(threading.Thread):
    """Samples the proportional set size of this process, in MiB."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0.0
        self.ended = threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.02):
            with open("/proc/self/smaps_rollup") as file:
                kib = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
            self.peak = max(self.peak, kib / 1024)

    def stop(self):
        self.ended.set()
        self.join()
        return self.peak


if __name__ == "__main__":
    main()

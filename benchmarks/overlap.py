#!/usr/bin/env python3
"""Steps of a row of linear layers over a throttled link: what of communication and computation is hidden.

Two ranks in two network namespaces, joined by a veth pair whose both ends send at --mbit (tbf). Needs root and
iproute2; undoes all that it sets up. Variants take turns in one run; a number is the median over the steps of all
turns.

hidden = (computation alone + communication alone - step) / the shorter of the two
"""

import argparse
import collections
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import time

import ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = ("fsdp-overlap-0", "fsdp-overlap-1")
ADDRESSES = ("10.231.77.1", "10.231.77.2")
PARTS = ("computation alone", "communication alone")
OURS = ("no prefetch", "prefetch", "backward post", "no limit", "one communicator")
TORCH = ("FSDP1", "FSDP1, no prefetch", "FSDP2")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def throttled_link(mbit):
    """Two namespaces, each with one end of a link."""
    try:
        for name in NAMES:
            ip("netns", "add", name)
        ip("link", "add", "ovl0", "netns", NAMES[0], "type", "veth", "peer", "name", "ovl1", "netns", NAMES[1])
        for i, name in enumerate(NAMES):
            ip("-n", name, "addr", "add", f"{ADDRESSES[i]}/30", "dev", f"ovl{i}")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", f"ovl{i}", "up")
            limit = ["rate", f"{mbit}mbit", "burst", "128kb", "latency", "100ms"]
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", f"ovl{i}", "root", "tbf", *limit], check=True)
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False)


def run(command, port):
    hosts = [(["ip", "netns", "exec", name], {"GLOO_SOCKET_IFNAME": f"ovl{rank}"}) for rank, name in enumerate(NAMES)]
    return ranks.run(command, len(NAMES), port, address=ADDRESSES[0], hosts=hosts)


def torch_worker(variant, layers, width, batch, steps):
    """The same row under PyTorch's FSDP1 or FSDP2; prints the seconds of each step on rank 0."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    modules = []
    for _ in range(layers):
        modules += [torch.nn.Linear(width, width, bias=False), torch.nn.Tanh()]
    row = torch.nn.Sequential(*modules)
    if variant == "FSDP2":
        for module in row:
            if isinstance(module, torch.nn.Linear):
                fully_shard(module, mesh=dist.init_device_mesh("cpu", (2,)))
        row = fully_shard(row, mesh=dist.init_device_mesh("cpu", (2,)))
    else:
        ahead = variant == "FSDP1"
        row = FullyShardedDataParallel(
            row,
            auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
            device_id=torch.device("cpu"),
            forward_prefetch=ahead,
            backward_prefetch=BackwardPrefetch.BACKWARD_PRE if ahead else None,
            limit_all_gathers=ahead,
        )
    inputs, times = torch.randn(batch, width), []
    for _ in range(2 + steps):
        dist.barrier()
        start = time.perf_counter()
        row.zero_grad()
        row(inputs).sum().backward()
        times.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(json.dumps(times[2:]))
    dist.barrier()
    dist.destroy_process_group()


def measure(options):
    """Seconds of steps, by variant."""
    size = (options.layers, options.width, options.batch, options.steps)
    times, port = collections.defaultdict(list), 29600
    for turn in range(options.turns):
        for variant in (*PARTS, *OURS, *(() if options.no_torch else TORCH)):
            ours = variant not in TORCH
            command = (
                [options.build_dir / "overlap", variant] if ours else [sys.executable, __file__, "--worker", variant]
            )
            sized = (
                size
                if ours
                else (f"--{key}={value}" for key, value in zip(("layers", "width", "batch", "steps"), size))
            )
            times[variant] += run([*command, *sized], port)
            port += 1
            print(f"turn {turn + 1}, {variant}: {statistics.median(times[variant]):.3f} s", file=sys.stderr)
    return times


def report(times):
    middle = {variant: statistics.median(values) for variant, values in times.items()}
    parts = [middle[part] for part in PARTS]
    lines = ["| variant | seconds a step | of the shorter part hidden |", "| --- | ---: | ---: |"]
    for variant, values in times.items():
        hidden = "" if variant in PARTS else f"{100 * (sum(parts) - middle[variant]) / min(parts):.0f} %"
        lines.append(f"| {variant} | {middle[variant]:.3f} ({min(values):.3f}–{max(values):.3f}) | {hidden} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--mbit", type=float, default=400, help="what each end of the link sends a second, in Mbit")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn that count, after two that warm up")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--no-torch", action="store_true", help="leave out PyTorch's FSDP1 and FSDP2")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        torch_worker(options.worker, options.layers, options.width, options.batch, options.steps)
        return
    with throttled_link(options.mbit):
        times = measure(options)
    print(report(times))


if __name__ == "__main__":
    main()

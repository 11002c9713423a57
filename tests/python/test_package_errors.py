"""Errors of the package: of the types that PyTorch raises, with ranks, units and names; and clean ends of processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

from package_ranks import SOURCE_DIR, library_environment, run_ranks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, names):
        x = torch.ones(2, 6)
        for name in names:
            x = getattr(self, name)(x)
        return x.sum()


def shard(net):
    from fsdp_cpp import fully_shard

    for layer in net.children():
        fully_shard(layer)
    return fully_shard(net)


def different_order(rank, size):
    net = shard(Net())
    net(["first", "second", "third"] if rank == 0 else ["first", "third", "second"])


def test_ranks_that_use_units_in_another_order_are_named():
    errors = run_ranks(2, different_order, expect_failure=True)
    for error in errors:
        assert isinstance(error, torch.distributed.DistBackendError), repr(error)
        assert "rank 0" in str(error) and "rank 1" in str(error), error
        assert "'second'" in str(error) and "'third'" in str(error), error


def one_rank_ends(rank, size):
    net = shard(Net())
    net(["first"])
    if rank == 1:
        os._exit(7)
    net(["second", "third"]).backward()


def test_a_rank_that_ends_is_named_by_the_others():
    error, nothing = run_ranks(2, one_rank_ends, expect_failure=True)
    assert nothing is None
    assert isinstance(error, torch.distributed.DistBackendError), repr(error)
    assert "rank 1" in str(error), error


def wrong_arguments(rank, size):
    from fsdp_cpp import EngineOptions, FSDPModule, fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard

    def refused(kind, part, *args, **kwargs):
        with pytest.raises(kind) as caught:
            fully_shard(*args, **kwargs)
        assert part in str(caught.value), caught.value

    layer = nn.Linear(6, 6)
    refused(ValueError, "ModuleList", nn.ModuleList([nn.Linear(2, 2)]))
    refused(ValueError, "factor of 2", layer, reshard_after_forward=3)
    refused(ValueError, "not yes", layer, reshard_after_forward="yes")
    refused(AssertionError, "'weight': Shard dim 2 is invalid for 2D", layer, shard_placement_fn=lambda _: Shard(2))
    refused(AssertionError, "'bias': Shard dim 1 is invalid for 1D", layer, shard_placement_fn=lambda _: Shard(1))
    refused(NotImplementedError, "dp_mesh_dims", layer, dp_mesh_dims=object())
    refused(ValueError, "1D or 2D", layer, mesh=init_device_mesh("cpu", (2, 1, 1)))
    refused(ValueError, "backward prefetch", layer, engine_options=EngineOptions(backward_prefetch="early"))
    refused(RuntimeError, "unknown backend 'tcp'", layer, engine_options=EngineOptions(backend="tcp"))
    scalar = nn.Linear(2, 2)
    scalar.scale = nn.Parameter(torch.tensor(1.0))
    refused(ValueError, "scale", scalar)
    assert not isinstance(layer, FSDPModule)  # what was refused was left alone
    fully_shard(layer)
    refused(AssertionError, "Linear", layer)


def test_wrong_arguments_are_refused_by_name():
    run_ranks(2, wrong_arguments)


def start_rank(rank, folder, program):
    environment = {**os.environ, **library_environment(), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-u", "-c", PREAMBLE + textwrap.dedent(program), str(rank), str(folder / "store")],
        env=environment,
        cwd=SOURCE_DIR,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


PREAMBLE = """
import sys, torch, torch.distributed as dist
from torch import nn
rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)
from fsdp_cpp import fully_shard
net = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 5))
fully_shard(net[0]), fully_shard(net)
net(torch.ones(2, 5))
"""


def test_ctrl_c_ends_a_rank_that_waits_and_the_others_name_it(tmp_path):
    late = """
        print("ready")
        input()
        net(torch.ones(2, 5)).sum().backward()
        """
    waiting, late = (
        start_rank(0, tmp_path, 'print("waits"); net(torch.ones(2, 5)).sum().backward()'),
        start_rank(1, tmp_path, late),
    )
    assert waiting.stdout.readline() == "waits\n"
    assert late.stdout.readline() == "ready\n"
    time.sleep(1)  # so that the rank is likely to wait; if not yet, it ends all the same
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=60)  # the late rank never comes, and the group waits for 30 minutes
    assert waiting.returncode != 0
    assert "KeyboardInterrupt" in errors or "interrupted" in errors, errors
    _, errors = late.communicate(input="\n", timeout=60)
    assert late.returncode == 1
    assert "rank 0" in errors, errors


def test_a_handled_ctrl_c_leaves_later_waits_alone(tmp_path):
    program = """
        import os, signal
        try:
            if rank == 0:
                os.kill(os.getpid(), signal.SIGINT)
                raise SystemExit("no exception")
        except KeyboardInterrupt:
            pass
        assert signal.getsignal(signal.SIGINT).__module__ == "fsdp_cpp._ctrl_c"
        net(torch.ones(2, 5)).sum().backward()
        """
    ranks = [start_rank(rank, tmp_path, program) for rank in range(2)]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors


ENDS = {
    "process group destroyed first": "dist.destroy_process_group(); del net, optimizer",
    "model deleted first": "del net, optimizer, loss; import gc; gc.collect(); dist.destroy_process_group()",
    "nothing destroyed": "",
    "an exception that nobody catches": "raise SystemExit(3)",
}


@pytest.mark.parametrize("order", ENDS)
def test_processes_end_without_a_crash_in_any_order(order, tmp_path):
    program = """
        optimizer = torch.optim.Adam(net.parameters())
        loss = net(torch.ones(2, 5)).sum()
        loss.backward()
        optimizer.step()
        """
    ranks = [start_rank(rank, tmp_path, program + ENDS[order]) for rank in range(2)]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == (3 if "SystemExit" in ENDS[order] else 0), errors

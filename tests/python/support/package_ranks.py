"""Runs functions of tests over several ranks, each a process with torch.distributed over Gloo and the package fsdp_cpp.

    def train(rank, size): ...          # at the top level of a test module
    results = run_ranks(2, train)

Ranks are forks of a server that has imported torch and done nothing else: a fork of the test's own process could wait
for ever for a lock that one of its threads held.
"""

import datetime
import io
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

SOURCE_DIR = Path(__file__).resolve().parents[3]
SECONDS_TO_WAIT = 120  # of a rank for another one
SECONDS_TO_RUN = 240
PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "transformers.integrations",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
]


def library_environment():
    """What a process needs in its environment to import the package from this checkout."""
    build = Path(os.environ["FSDP_BUILD_DIR"]).resolve()
    path = os.pathsep.join([str(SOURCE_DIR / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "FSDP_CPP_LIBRARY": os.environ.get("FSDP_CPP_LIBRARY", str(build / "libfsdp_cpp.so"))}


def run_ranks(size, function, *args, expect_failure=False, **kwargs):
    """Calls function(rank, size, *args, **kwargs) on each of `size` ranks and returns their results in the order of
    ranks.

    A rank that raises fails the test with its traceback, and ends the others. With `expect_failure`, returns the
    exceptions that ranks raised in the place of their results instead; no rank is ended.
    """
    for last in (False, True):
        try:
            return _run_ranks(size, function, args, kwargs, expect_failure)
        except NotConnected:
            if last:
                raise


class NotConnected(Exception):
    """The ranks did not meet, so that the function has not been called yet. Between many processes on a busy machine,
    Gloo in PyTorch loses a connection once in thousands of times while it is made."""


def _run_ranks(size, function, args, kwargs, expect_failure):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="fsdp-package-ranks-") as folder:
        ranks = [_start(context, rank, size, folder, function, args, kwargs) for rank in range(size)]
        try:
            return _collect(ranks, expect_failure)
        finally:
            for process, receiver in ranks:
                process.kill()
                process.join()
                receiver.close()


def _start(context, rank, size, folder, function, args, kwargs):
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_run_rank, args=(sender, library_environment(), rank, size, folder, function, args, kwargs)
    )
    process.start()
    sender.close()
    return process, receiver


def _collect(ranks, expect_failure):
    results = [None] * len(ranks)
    left = {receiver: rank for rank, (_, receiver) in enumerate(ranks)}
    deadline = time.monotonic() + SECONDS_TO_RUN
    while left:
        ready = wait(left, timeout=max(0, deadline - time.monotonic()))
        assert ready, f"rank(s) {sorted(left.values())} did not end within {SECONDS_TO_RUN} s"
        for receiver in ready:
            rank = left.pop(receiver)
            try:
                error, value = _unpack(receiver.recv_bytes())
            except EOFError:
                ranks[rank][0].join()
                error, value = f"ended with exit code {ranks[rank][0].exitcode} without a result", None
            if isinstance(value, NotConnected):
                raise value
            assert expect_failure or error is None, f"rank {rank}: {error}"
            results[rank] = value
    return results


def _run_rank(sender, environment, rank, size, folder, function, args, kwargs):
    os.environ.update(environment)
    sys.path.insert(0, str(SOURCE_DIR / "python"))
    try:
        _join(rank, size, folder)
        outcome = (None, function(rank, size, *args, **kwargs))
    except BaseException as error:
        outcome = (traceback.format_exc(), _without_traceback(error))
    sender.send_bytes(_pack(outcome))
    sender.close()
    if outcome[0] is None and dist.is_initialized():
        dist.destroy_process_group()


def _pack(outcome):
    """Tensors travel as bytes: what multiprocessing makes of them lives no longer than their rank."""
    buffer = io.BytesIO()
    torch.save(outcome, buffer)
    return buffer.getvalue()


def _unpack(received):
    return torch.load(io.BytesIO(received), weights_only=False)


def _without_traceback(error):
    """An exception that can be pickled: of the same class if that takes one argument."""
    try:
        return type(error)(str(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _join(rank, size, folder):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(f"{folder}/store", size),
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=SECONDS_TO_WAIT),
        )
    except RuntimeError as error:
        raise NotConnected(f"rank {rank}: {error}") from None

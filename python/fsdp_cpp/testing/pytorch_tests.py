"""A plug-in of pytest with which PyTorch's own tests of FSDP test this package, on CPUs.

    FSDP_CPP_TEST_RANKS=2 pytest -p fsdp_cpp.testing.pytorch_tests test_fully_shard_training.py

Needs expecttest, as PyTorch's tests do. Before test modules are imported, in pytest's process and in the ranks that
tests start, it

- calls :func:`fsdp_cpp.install`, so that ``from torch.distributed.fsdp import fully_shard`` finds this package;
- lets torch report as many devices as there are ranks (``FSDP_CPP_TEST_RANKS``, default 2), and lets the decorators
  that skip tests for want of GPUs run them;
- reads the GPUs that test modules name as CPUs (:mod:`fsdp_cpp.testing._devices`);
- lets the host sleep where tests make GPUs late;
- runs tests whose ranks are threads (``FSDPTestMultiThread``) with processes as ranks;
- adds the collectives of this engine to those that ``CommDebugMode`` counts;
- passes the checks of inner states (``_assert_state``) that are in the support for tests itself.

Tests that replace or inspect the inside of PyTorch's implementation (``foreach_all_gather``, ``_get_fsdp_state()``)
fail: there is no such inside here.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
import pickle
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from fsdp_cpp.testing._devices import read_gpus_as_cpus

_active = False


def activate() -> None:
    """Prepares this process for test modules of PyTorch's. Further calls do nothing."""
    global _active
    if _active:
        return
    _active = True
    ranks = int(os.environ.get("FSDP_CPP_TEST_RANKS", "2"))
    _report_devices(ranks)
    _run_tests_without_gpus()

    import fsdp_cpp

    fsdp_cpp.install(cpu=True)
    _set_world_size(ranks)
    _count_collectives()
    _supply_old_names()
    _pass_checks_of_states()
    _sleep_on_the_host()
    read_gpus_as_cpus()
    _activate_in_children()


# -- devices --


def _report_devices(ranks: int) -> None:
    import torch

    torch.accelerator.device_count = lambda: ranks
    torch.cpu.device_count = lambda: ranks


def _run_tests_without_gpus() -> None:
    from torch.testing._internal import common_cuda, common_distributed

    def run_anyway(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda function: function

    common_distributed.skip_if_lt_x_gpu = run_anyway
    common_distributed.requires_nccl = lambda: lambda function: function
    common_cuda.TEST_CUDA = True


def _set_world_size(ranks: int) -> None:
    from torch.testing._internal import common_fsdp

    class FSDPTestMultiThread(common_fsdp.FSDPTest):
        """Tests that PyTorch runs with threads as ranks, as many as they like."""

        @classmethod
        def _run(cls, rank: int, test_name: str, *args: Any, **kwargs: Any) -> None:
            _report_devices(cls(test_name).world_size)
            super()._run(rank, test_name, *args, **kwargs)

        def perThreadSetUp(self) -> None:
            """Called by subclasses; a process needs no preparation."""

    common_fsdp.DEVICE_COUNT = ranks
    common_fsdp.FSDPTestContinuous.world_size = ranks
    common_fsdp.FSDPTestMultiThread = FSDPTestMultiThread


def _pass_checks_of_states() -> None:
    """The support for FSDP1's tests looks at the inner state of modules between its own checks."""
    from fsdp_cpp import FullyShardedDataParallel

    FullyShardedDataParallel._assert_state = lambda self, state: None  # type: ignore[attr-defined]


def _sleep_on_the_host() -> None:
    """Tests make collectives and operators late by GPUs that count cycles. Here the host sleeps as long."""
    import torch
    from torch.testing._internal import common_fsdp, common_utils

    for module in (common_fsdp, common_utils):
        module.get_cycles_per_ms = lambda: 1.0
    torch.cuda._sleep = lambda cycles: time.sleep(cycles / 1000)


def _supply_old_names() -> None:
    """Stands in for a decorator of older versions that ran tests of FSDP2 compiled besides: they run without."""
    from torch.testing._internal import common_fsdp

    if not hasattr(common_fsdp, "test_compiled_fsdp"):
        common_fsdp.test_compiled_fsdp = lambda compile_compute_on_module=None: lambda function: function


# -- collectives --


def _count_collectives() -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    enter = CommDebugMode.__enter__

    @functools.wraps(enter)
    def enter_and_note(self: Any) -> Any:
        self._fsdp_cpp_before = _collectives()
        return enter(self)

    def get_comm_counts(self: Any) -> dict[Any, int]:
        counts = self.comm_counts.copy()
        for operator, count in _collectives().items():
            added = count - self._fsdp_cpp_before[operator]
            if added:
                counts[operator] += added
        return counts

    CommDebugMode.__enter__ = enter_and_note
    CommDebugMode.get_comm_counts = get_comm_counts
    CommDebugMode.get_total_counts = lambda self: sum(get_comm_counts(self).values())


def _collectives() -> dict[Any, int]:
    """The number of collectives of all models so far, by the operators that FSDP2 calls for them."""
    import torch

    from fsdp_cpp._mirror import annotated_modules
    from fsdp_cpp._tree import annotated_at, sharded_of

    trees = {}
    for module in annotated_modules():
        for one in annotated_at(module, recurse=False):
            trees[sharded_of(one).identity()] = sharded_of(one)
    stats = [tree.stats() for tree in trees.values()]
    operators = {
        "all_gathers": torch.ops.c10d._allgather_base_,
        "reduce_scatters": torch.ops.c10d._reduce_scatter_base_,
        "all_reduces": torch.ops.c10d.allreduce_,
    }
    return {operator: sum(one[name] for one in stats) for name, operator in operators.items()}


# -- ranks --


class _Activated:
    """The function of a child process. A child that starts as a new Python unpickles it before all else, and so
    activates the plug-in before it imports the test module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _activated, (bytes(ForkingPickler.dumps(self._function)),)


def _activated(pickled: bytes) -> _Activated:
    activate()
    return _Activated(pickle.loads(pickled))


def _activate_in_children() -> None:
    initialise = multiprocessing.process.BaseProcess.__init__

    @functools.wraps(initialise)
    def with_activation(self: Any, group: Any = None, target: Any = None, *args: Any, **kwargs: Any) -> None:
        initialise(self, group, None if target is None else _Activated(target), *args, **kwargs)

    multiprocessing.process.BaseProcess.__init__ = with_activation


def pytest_configure(config: Any) -> None:
    """Called by pytest before it collects tests."""
    activate()

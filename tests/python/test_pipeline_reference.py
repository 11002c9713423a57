"""Pipelines train as torch.distributed.pipelining does over Gloo, with stages of FSDP2 where there are several
data-parallel ranks."""

import json
import sys
from pathlib import Path

import pytest

from package_ranks import run_ranks
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import ranks  # noqa: E402
import torch_pipeline  # noqa: E402

MICRO_BATCHES, BLOCKS, WIDTH, ROWS, STEPS = 4, 8, 13, 3, 3


def of_last_stages(results):
    """The losses of the ranks that hold the last stage, by data-parallel rank."""
    return [result["losses"] for result in results if result["losses"][0]]


def our_losses(build_dir, name, count, stages_per_rank, data_parallel):
    program = build_dir / "pipeline_bench"
    words = [program, name, stages_per_rank, data_parallel, MICRO_BATCHES, BLOCKS, WIDTH, ROWS, STEPS]
    with free_port() as port:
        return of_last_stages(map(json.loads, ranks.outputs(words, count * data_parallel, port, timeout=240)))


def train_in_torch(_rank, _size, name, stages_per_rank, data_parallel):
    return torch_pipeline.train(name, stages_per_rank, data_parallel, MICRO_BATCHES, BLOCKS, WIDTH, ROWS, STEPS)


@pytest.mark.parametrize(
    "name, count, stages_per_rank, data_parallel",
    [("GPipe", 2, 1, 1), ("1F1B", 4, 1, 1), ("Interleaved1F1B", 2, 2, 1), ("1F1B", 2, 1, 2)],
)
def test_losses_are_those_of_torch(build_dir, name, count, stages_per_rank, data_parallel):
    ours = our_losses(build_dir, name, count, stages_per_rank, data_parallel)
    torchs = of_last_stages(run_ranks(count * data_parallel, train_in_torch, name, stages_per_rank, data_parallel))
    assert len(ours) == len(torchs) == data_parallel
    for one, other in zip(ours, torchs, strict=True):
        assert one[0] != one[1]
        for step, expected in zip(one, other, strict=True):
            assert step == pytest.approx(expected, rel=1e-6)


def test_losses_are_those_of_one_process(build_dir):
    (plain,) = our_losses(build_dir, "plain", 1, 1, 1)
    (pipelined,) = our_losses(build_dir, "1F1B", 3, 1, 1)
    assert pipelined == plain

"""Pipelines train as torch.distributed.pipelining does over Gloo, with stages of FSDP2 where there are several
data-parallel ranks."""

import json
import sys
from pathlib import Path

import pytest

from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import ranks  # noqa: E402

MICRO_BATCHES, BLOCKS, WIDTH, ROWS, STEPS = 4, 8, 13, 3, 3


def losses_of(command, name, count, stages_per_rank, data_parallel):
    """Of the ranks that hold the last stage, by data-parallel rank."""
    words = [*command, name, stages_per_rank, data_parallel, MICRO_BATCHES, BLOCKS, WIDTH, ROWS, STEPS]
    with free_port() as port:
        results = map(json.loads, ranks.outputs(words, count * data_parallel, port, timeout=240))
    return [result["losses"] for result in results if result["losses"][0]]


@pytest.mark.parametrize(
    "name, count, stages_per_rank, data_parallel",
    [("GPipe", 2, 1, 1), ("1F1B", 4, 1, 1), ("Interleaved1F1B", 2, 2, 1), ("1F1B", 2, 1, 2)],
)
def test_losses_are_those_of_torch(build_dir, name, count, stages_per_rank, data_parallel):
    ours = losses_of([build_dir / "pipeline_bench"], name, count, stages_per_rank, data_parallel)
    torchs = losses_of(
        [sys.executable, ROOT / "benchmarks/torch_pipeline.py"], name, count, stages_per_rank, data_parallel
    )
    assert len(ours) == len(torchs) == data_parallel
    for one, other in zip(ours, torchs, strict=True):
        assert one[0] != one[1]
        for step, expected in zip(one, other, strict=True):
            assert step == pytest.approx(expected, rel=1e-6)


def test_losses_are_those_of_one_process(build_dir):
    program = build_dir / "pipeline_bench"
    (plain,) = losses_of([program], "plain", 1, 1, 1)
    (pipelined,) = losses_of([program], "1F1B", 3, 1, 1)
    assert pipelined == plain

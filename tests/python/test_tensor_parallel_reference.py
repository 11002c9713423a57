"""Split weights train as with torch.distributed.tensor.parallel over Gloo, under FSDP2 where there are several
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
import torch_tensor_parallel  # noqa: E402

# The hidden size, four times the width, can be divided by 2 and 3: PyTorch fails if parts differ in size.
BLOCKS, WIDTH, ROWS, STEPS = 3, 15, 6, 4


def our_results(build_dir, tensor_parallel, data_parallel, sequence_parallel=0):
    program = build_dir / "tensor_parallel_bench"
    words = [program, tensor_parallel, BLOCKS, WIDTH, ROWS, STEPS, sequence_parallel]
    with free_port() as port:
        return [
            json.loads(text)
            for text in ranks.outputs(words, max(1, tensor_parallel) * data_parallel, port, timeout=240)
        ]


def train_in_torch(_rank, _size, tensor_parallel, sequence_parallel):
    return torch_tensor_parallel.train(tensor_parallel, BLOCKS, WIDTH, ROWS, STEPS, sequence_parallel)


@pytest.mark.parametrize(
    "tensor_parallel, data_parallel, sequence_parallel", [(2, 1, 0), (3, 1, 0), (2, 2, 0), (3, 1, 1), (2, 2, 1)]
)
def test_losses_are_those_of_torch(build_dir, tensor_parallel, data_parallel, sequence_parallel):
    ours = our_results(build_dir, tensor_parallel, data_parallel, sequence_parallel)
    torchs = run_ranks(tensor_parallel * data_parallel, train_in_torch, tensor_parallel, sequence_parallel)
    for one, other in zip(ours, torchs, strict=True):
        assert one["losses"][0] != one["losses"][1]
        assert one["losses"] == pytest.approx(other["losses"], rel=1e-6)


def test_losses_are_those_of_one_process(build_dir):
    (plain,) = our_results(build_dir, 0, 1)
    for sequence_parallel in (0, 1):
        for result in our_results(build_dir, 2, 1, sequence_parallel):
            assert result["losses"] == pytest.approx(plain["losses"], rel=1e-6)

"""Shards and optimizer state in files: resident memory falls by that much, and training goes on exactly."""

import dataclasses

import pytest

from test_examples import run_ranks

RANKS = 2
# Freed blocks go back to the system: what glibc's heap keeps changes from run to run.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
LAYERS, WIDTH = 16, 1024  # 4 MiB a layer, 64 MiB in all
SHARDS_MIB = LAYERS * WIDTH * WIDTH * 4 // 2**20 // RANKS
STATE_MIB = 2 * SHARDS_MIB
LAYER_MIB = SHARDS_MIB * RANKS // LAYERS


@dataclasses.dataclass
class Outcome:
    losses: list
    after_step: int  # resident MiB, of the rank that has most
    in_forward: int
    in_step: int


@pytest.fixture(scope="module")
def program(build_dir):
    def run(folder, optimizer):
        statuses, outputs = run_ranks(
            build_dir / "offload_memory",
            RANKS,
            arguments=[folder, optimizer, LAYERS, WIDTH],
            more_environment=ENVIRONMENT,
        )
        assert statuses == [0] * RANKS, "\n".join(outputs)
        lines = [output.split() for output in outputs]
        return Outcome([line[0] for line in lines], *(max(int(line[i]) for line in lines) for i in (1, 2, 3)))

    return run


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_resident_memory_falls_by_shards_and_optimizer_state(program, tmp_path, optimizer):
    usual, offloaded = program("none", optimizer), program(tmp_path / "offload", optimizer)
    assert offloaded.losses == usual.losses
    falls = 0.9 * (SHARDS_MIB + STATE_MIB)
    assert usual.after_step - offloaded.after_step >= falls
    assert usual.in_forward - offloaded.in_forward >= falls - LAYER_MIB, "a unit's shards are touched at a time"
    if optimizer == "fused":
        assert usual.in_step - offloaded.in_step >= falls - 3 * 8 - LAYER_MIB, "8 MiB of parameters at a time"
    assert list((tmp_path / "offload").iterdir()) == []

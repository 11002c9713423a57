"""A model that does not fit the memory of a process: it can be sharded and trained when it is built deferred."""

import pytest

from test_examples import run_ranks

RANKS = 4
LAYERS, WIDTH = 32, 1600  # 9.8 MiB a layer, 312 MiB in all
# Each large block is mapped by itself and given back when it is freed: the limit then is on what is held.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
FULL_MIB = LAYERS * WIDTH * WIDTH * 4 // 2**20


@pytest.fixture(scope="module")
def program(build_dir):
    def run(how, limit_mib):
        return run_ranks(
            build_dir / "start_up_memory",
            RANKS,
            arguments=[how, LAYERS, WIDTH, limit_mib],
            more_environment=ENVIRONMENT,
        )

    return run


def test_a_model_larger_than_the_limit_is_trained_when_built_deferred(program):
    # A quarter each of parameters and gradients, three layers with their gradients, and the communicator's staging.
    limit = FULL_MIB * 7 // 8
    statuses, outputs = program("deferred", limit)
    assert statuses == [0] * RANKS, "\n".join(outputs)
    _, unlimited = program("eager", 8 * FULL_MIB)
    assert outputs == unlimited, "the same numbers as without deferral"

    statuses, outputs = program("eager", limit)
    assert statuses == [1] * RANKS, "\n".join(outputs)
    assert all("allocate" in output for output in outputs), "\n".join(outputs)

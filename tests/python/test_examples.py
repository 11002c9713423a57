"""Every program of examples/ runs on several ranks, and its own check passes."""

import os
import subprocess
from pathlib import Path

import pytest

from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
# Each example, and what its rank 0 prints.
EXAMPLES = {
    "activation_checkpointing": "bytes kept for backward:",
    "auto_units": "units; gathered parameters and gradient buffers took",
    "deferred_init": "parameters initialised in shards",
    "divergence": "rank 1 left out block1",
    "fp16_with_scaler": "step 20 skipped",
    "gradient_accumulation": "20 reductions when each pass reduces, 5 with no_sync",
    "gradient_compression": "in bf16:",
    "hybrid_sharding": "HYBRID_SHARD:",
    "lamb": "largest difference to LAMB in one process:",
    "lora": "LoRA trained:",
    "lora_llama": "LoRA       shards",
    "mixed_precision": "loss in bf16:",
    "muon": "rank 0 keeps the state of",
    "offload": "the same loss with shards in files",
    "optimizer_in_backward": "bytes of gradients waited at a time",
    "own_model": "after 60 steps",
    "prefetching": "gathers issued ahead in three steps:",
    "shard_your_model": "step 40 loss",
    "tensor_parallel": "weights and sequence split: attention.q has 32 outputs",
    "state_dict": 'tensors of {"step":6} under other names',
    "whole_parameters": "visited 132929 elements",
}
RANKS = {"divergence": (2, 3), "hybrid_sharding": (2, 4), "tensor_parallel": (2, 4)}  # the others: one and two
CASES = [(name, ranks) for name in EXAMPLES for ranks in RANKS.get(name, (1, 2))]


def environment_of(rank, ranks, port):
    ours = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
    }
    return {**os.environ, **{name: str(value) for name, value in ours.items()}}


def run_ranks(program, ranks, timeout=120, arguments=(), more_environment=None):
    """The exit statuses of all ranks, and what they printed."""
    assert program.exists(), f"{program} is missing: run make build"
    command = [program, *map(str, arguments)]
    with free_port() as port:
        environments = [{**environment_of(rank, ranks, port), **(more_environment or {})} for rank in range(ranks)]
        processes = [
            subprocess.Popen(
                command, env=environments[rank], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=timeout)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return [process.returncode for process in processes], outputs


def test_every_example_is_run_here(source_dir):
    assert sorted(path.stem for path in (source_dir / "examples").glob("*.cpp")) == sorted(EXAMPLES)


@pytest.mark.parametrize("name, ranks", CASES, ids=[f"{name}-{ranks}" for name, ranks in CASES])
def test_example(build_dir, name, ranks):
    statuses, outputs = run_ranks(build_dir / name, ranks)
    assert statuses == [0] * ranks, "\n".join(outputs)
    assert EXAMPLES[name] in outputs[0]
    # Where ranks fail, rank 0 may be gone with its store while another rank's watchdog asks there: LibTorch then warns.
    assert name == "divergence" or not any(outputs[1:]), "only rank 0 prints"


@pytest.mark.parametrize("name", ["hybrid_sharding", "tensor_parallel"])
def test_an_odd_number_of_ranks_is_refused(build_dir, name):
    statuses, outputs = run_ranks(build_dir / name, 1)
    assert statuses == [1]
    assert "even number of ranks" in outputs[0]


def section(name, marker):
    return (ROOT / "examples" / name).read_text().split(f"// [{marker}]\n")[1].split(f"// [/{marker}]")[0].strip()


@pytest.mark.parametrize(
    "example, marker, page",
    [("own_model.cpp", "model", "docs/models.md"), ("tensor_parallel.cpp", "plan", "docs/tensor_parallelism.md")],
)
def test_docs_show_the_code_of_the_example(example, marker, page):
    assert f"```cpp\n{section(example, marker)}\n```" in (ROOT / page).read_text()

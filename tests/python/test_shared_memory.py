"""`fsdp train` with ranks that are processes of their own and share memory: as over Gloo, and what happens when one of
them does not answer, dies, or lives in a container."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from fsdp_train import fsdp_train
from ports import free_port
from waiting import wait_until

MODEL = dict(
    model_type="llama",
    vocab_size=97,
    hidden_size=32,
    intermediate_size=44,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
CONFIG = dict(
    model=MODEL,
    dataset="dummy:64",
    eval_dataset="dummy:8",
    do_eval=True,
    max_seq_length=16,
    train_batch_size=2,
    max_steps=6,
    learning_rate=1e-2,
    clip_grad_norm=0.5,
    gradient_accumulation_steps=2,
    seed=3,
)


@pytest.mark.parametrize(
    "world_size, strategy, dtype",
    ((2, "full_shard", "fp32"), (3, "full_shard", "bf16"), (4, "shard_grad_op", "fp32"), (3, "no_shard", "fp32")),
)
def test_trains_as_over_gloo(fsdp_program, tmp_path, world_size, strategy, dtype):
    """To the bit, with any number of ranks: both add contributions in the order of ranks."""
    config = {**CONFIG, "sharding_strategy": strategy, "dtype": dtype}
    shared, sent = (
        fsdp_train(fsdp_program, {**config, "comm_backend": backend}, world_size, tmp_path / backend)
        for backend in ("shm", "gloo")
    )
    assert (shared.losses, shared.eval_loss) == (sent.losses, sent.eval_loss)
    weights = shared.weights()
    for name, value in sent.weights().items():
        assert torch.equal(weights[name], value), name


# ---------------------------------------------------------------- ranks that do not answer


class LongRun:
    """Two ranks that train for as long as they are let."""

    def __init__(self, program, folder):
        config = folder / "config.json"
        config.write_text(
            json.dumps({**CONFIG, "max_steps": 10**6, "comm_backend": "shm", "output_dir": str(folder / "output")})
        )
        self.metrics = folder / "output/metrics.jsonl"
        self.log = folder / "log"
        with open(self.log, "wb") as sink:
            self.launcher = subprocess.Popen(
                [program, "train", "--config-path", config, "--nproc-per-node", "2"],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def __enter__(self):
        wait_until(lambda: self.metrics.exists() and self.metrics.read_text().count("\n") > 3, self.text)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()

    def ranks(self):
        """Process ids, in the order in which they were started."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        return sorted(map(int, children.read_text().split()))

    def text(self):
        return self.log.read_text()


def test_a_stopped_rank_is_told_from_a_lost_one(fsdp_program, tmp_path):
    with LongRun(fsdp_program, tmp_path) as run:
        stopped = run.ranks()[1]
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: f"for rank 1, which is stopped (process {stopped})" in run.text(), run.text)
        assert "is lost" not in run.text()
        steps = run.metrics.read_text().count("\n")
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: run.metrics.read_text().count("\n") > steps + 3, run.text)


def named_memory(process):
    """The entries of /dev/shm that a process has mapped; without those that have lost their names."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return [line for line in lines if "/dev/shm/" in line and not line.endswith(" (deleted)")]


def test_a_killed_rank_is_named_and_nothing_stays_behind(fsdp_program, tmp_path):
    with LongRun(fsdp_program, tmp_path) as run:
        ranks = run.ranks()
        assert not any(named_memory(process) for process in ranks), "memory that ranks share has no name"
        os.kill(ranks[1], signal.SIGKILL)
        assert run.launcher.wait(timeout=60) == 128 + signal.SIGKILL, run.text()
        assert "rank 1 was killed by signal 9" in run.text()
        assert not any(Path(f"/proc/{process}").exists() for process in ranks)


# ---------------------------------------------------------------- ranks in a container


def has_containers():
    return (
        subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
        ).returncode
        == 0
    )


def train_with_one_in_a_container(program, folder, backend):
    """Of two ranks with the same host name the second one sees processes of its own only. What each has said, and its
    status."""
    with free_port() as port:
        ranks = []
        for rank in range(2):
            config = folder / f"config{rank}.json"
            config.write_text(json.dumps({**CONFIG, "comm_backend": backend, "output_dir": str(folder / "output")}))
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            contained = ["unshare", "--pid", "--fork", "--mount-proc"] if rank == 1 else []
            ranks.append(
                subprocess.Popen(
                    [*contained, program, "train", "--config-path", config],
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        texts = [process.communicate(timeout=120)[0] for process in ranks]
    return texts, [process.returncode for process in ranks]


def test_ranks_in_containers_go_over_gloo(fsdp_program, tmp_path):
    if not has_containers():
        pytest.skip("no process namespace can be made here (needs root)")
    texts, statuses = train_with_one_in_a_container(fsdp_program, tmp_path, "auto")
    assert statuses == [0, 0], texts
    assert "over Gloo: rank 0 on host" in texts[0] and "cannot reach the memory of rank 1" in texts[0]
    texts, statuses = train_with_one_in_a_container(fsdp_program, tmp_path, "shm")
    assert 0 not in statuses
    for text in texts:
        assert "no shared memory: rank 0 on host" in text and "Use Gloo" in text

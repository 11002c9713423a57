"""`fsdp train` under a Slurm that runs here: srun's tasks are the ranks of one run."""

import json
import subprocess

import pytest

from slurm_host import NotAvailable, slurm_host
from waiting import wait_until

MODEL = dict(
    model_type="llama",
    vocab_size=31,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
CONFIG = dict(
    model=MODEL,
    dataset="dummy:64",
    max_seq_length=16,
    train_batch_size=2,
    max_steps=4,
    learning_rate=1e-2,
    dtype="fp32",
    device="cpu",
)


@pytest.fixture(scope="module")
def slurm():
    try:
        with slurm_host() as environment:
            yield {**environment, "OMP_NUM_THREADS": "1"}
    except NotAvailable as reason:
        pytest.skip(str(reason))


class Training:
    """One config, whose runs go to `folder`/NAME."""

    def __init__(self, program, folder, environment):
        self.program, self.folder, self.environment = program, folder, environment

    def command(self, name, *options, **changes):
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps({**CONFIG, "output_dir": str(self.folder / name), **changes}))
        return [str(self.program), "train", "--config-path", str(file), *options]

    def run(self, command):
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, cwd=self.folder, check=False
        )

    def losses(self, name):
        return [json.loads(line)["loss"] for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def ranks(self, name):
        return json.loads((self.folder / name / "run.json").read_text())["ranks"]


@pytest.fixture
def training(fsdp_program, tmp_path, slurm):
    return Training(fsdp_program, tmp_path, slurm)


def test_tasks_are_ranks_of_one_run(training):
    assert training.run(training.command("here", "--nproc-per-node", "2")).returncode == 0
    result = training.run(["srun", "-n", "2", *training.command("step")])
    assert result.returncode == 0, result.stderr
    assert training.ranks("step") == 2
    assert training.losses("step") == training.losses("here")


def test_a_batch_script_may_start_ranks_or_steps(training):
    script = training.folder / "script"
    lines = [
        "#!/bin/sh",
        "set -e",
        " ".join(training.command("launched", "--nproc-per-node", "2")),
        "srun " + " ".join(training.command("steps")),
        "srun -n 1 --mpi=pmi2 " + " ".join(training.command("in_a_task", "--nproc-per-node", "2")),
    ]
    script.write_text("\n".join(lines) + "\n")
    result = training.run(["sbatch", "--wait", "-n", "2", "-o", str(training.folder / "log"), str(script)])
    assert result.returncode == 0, (training.folder / "log").read_text()
    for name in ("launched", "steps", "in_a_task"):
        assert training.ranks(name) == 2, name
    assert training.losses("launched") == training.losses("steps") == training.losses("in_a_task")


def test_tasks_that_would_each_start_ranks_are_refused(training):
    result = training.run(["srun", "-n", "2", *training.command("twice", "--nproc-per-node", "2")])
    assert result.returncode == 2
    assert "SLURM_PROCID" in result.stderr


def test_a_signal_before_the_time_is_over_saves_a_checkpoint(training):
    """As `sbatch --signal=USR1@60` sends it to the tasks."""
    command = training.command("signalled", max_steps=1000000, save_steps=1000000, logging_steps=1)
    with subprocess.Popen(
        ["srun", "-n", "2", "-J", "signalled", *command],
        env=training.environment,
        cwd=training.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as step:
        metrics = training.folder / "signalled/metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
        subprocess.run(["scancel", "--signal=USR1", "--name=signalled"], env=training.environment, check=True)
        out, err = step.communicate(timeout=60)
    assert "stopping after step" in out, out + err
    assert list((training.folder / "signalled").glob("checkpoint-*/manifest.json"))

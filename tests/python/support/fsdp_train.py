"""Runs `fsdp train` and reads what it left."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

SAID = {"shm": "shared memory", "gloo": "Gloo"}  # by the program, of what it was told to use


@dataclasses.dataclass
class Run:
    steps: list  # the rows of metrics.jsonl that report a step
    eval_loss: float | None
    final: Path  # the saved folder

    @property
    def losses(self):
        return [row["loss"] for row in self.steps]

    def weights(self):
        from safetensors.torch import load_file

        weights = {}
        for file in sorted(self.final.glob("*.safetensors")):
            weights.update(load_file(file))
        return weights


def fsdp_train(program, config, world_size, folder, timeout=300):
    """Trains over `world_size` local ranks with one thread each; `folder` receives config, metrics and weights. What
    the config says nothing of: ranks communicate as the fixture `communicator` says, or as the program chooses."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    chosen = {"comm_backend": os.environ.get("FSDP_TEST_COMMUNICATOR", "auto"), **config}
    file.write_text(json.dumps({**chosen, "output_dir": str(folder / "output")}))
    result = subprocess.run(
        [program, "train", "--config-path", file, "--nproc-per-node", str(world_size)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, f"fsdp train failed with {result.returncode}:\n{result.stdout}\n{result.stderr}"
    if chosen["comm_backend"] in SAID:
        assert f"communicating over {SAID[chosen['comm_backend']]}\n" in result.stdout + result.stderr
    rows = [json.loads(line) for line in (folder / "output/metrics.jsonl").read_text().splitlines()]
    evaluations = [row["eval_loss"] for row in rows if "eval_loss" in row]
    return Run(
        [row for row in rows if "loss" in row], evaluations[-1] if evaluations else None, folder / "output/final"
    )

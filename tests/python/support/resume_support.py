"""A small training that saves checkpoints, run by the program as it is shipped, and what must be left of it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

MEASURED = (
    "samples_per_second",
    "tokens_per_second",
    "tflops",
    "hardware_tflops",
    "peak_memory_bytes",
    "mapped_file_bytes",
)


def write_model(folder, tied=True):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=131,
        hidden_size=18,
        intermediate_size=29,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Job:
    """One output folder. Configs are keys of `fsdp train` on top of those of a run of a second."""

    def __init__(self, program, model, folder, **config):
        self.program, self.folder = program, Path(folder)
        self.output = self.folder / "output"
        self.config = {
            "model_path": str(model),
            "dataset": "dummy:40",
            "max_seq_length": 9,
            "train_batch_size": 2,
            "max_steps": 6,
            "dtype": "fp32",
            "learning_rate": 1e-2,
            "save_steps": 2,
            "save_final": True,
            "resume_from_checkpoint": "latest",
            "output_dir": str(self.output),
            **config,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "config.json"
        self.file.write_text(json.dumps(self.config))

    def command(self, ranks=1, before=(), overrides=()):
        line = [*before, self.program, "train", "--config-path", self.file]
        for override in overrides:
            line += ["--set", override]
        return [str(word) for word in (line if ranks == 1 else [*line, "--nproc-per-node", ranks])]

    def environment(self):
        return {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(self, **how):
        return subprocess.Popen(
            self.command(**how),
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, **how):
        process = self.start(**how)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def finish(self, **how):
        """Runs to the end and returns what was left: metrics by step, and the model."""
        result = self.run(**how)
        assert result.returncode == 0, result.stdout + result.stderr
        return self.left()

    def left(self):
        return self.metrics(), (self.output / "final/model.safetensors").read_bytes()

    def metrics(self):
        """Of two lines for one step the later counts."""
        metrics = {}
        for line in (self.output / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            metrics[row["step"]] = {key: value for key, value in row.items() if key not in MEASURED}
        return metrics

    def copy(self, folder):
        """The same job elsewhere, with what it has written so far."""
        other = Job(
            self.program,
            self.config["model_path"],
            folder,
            **{key: value for key, value in self.config.items() if key not in ("model_path", "output_dir")},
        )
        if self.output.exists():
            shutil.copytree(self.output, other.output)
        return other

    def checkpoints(self):
        return sorted(path.name for path in self.output.glob("checkpoint-*"))

    def leftovers(self):
        return sorted(path.name for path in self.output.glob(".checkpoint-*"))

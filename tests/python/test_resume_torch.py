"""A run of PyTorch goes on as one of `fsdp train`: its DCP checkpoint is converted and resumed, and the next losses are
those that PyTorch would have had."""

import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from transformers import AutoModelForCausalLM

from resume_support import Job, write_model
from torch_fsdp_reference import make_tokens

LENGTH, BATCH, LEARNING_RATE = 9, 4, 1e-2
BEFORE, AFTER = 3, 4  # steps in PyTorch, and after them
# fp32: what the order of additions changes in a few steps, as test_training_parity.py has it.
TOLERANCE = 1e-5


def run(*command, status=0):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def groups_of(model):
    """As many do it: no decay for norms. Here neither decays, as `fsdp train` has one weight_decay for all."""
    norms = [value for name, value in model.named_parameters() if "norm" in name]
    others = [value for name, value in model.named_parameters() if "norm" not in name]
    return [{"params": others}, {"params": norms, "betas": (0.8, 0.99)}]


class TorchRun:
    def __init__(self, folder, tokens, groups=None):
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        parameters = groups(self.model) if groups else self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
        self.batches = torch.tensor(tokens).view(-1, BATCH, LENGTH)

    def step(self, number):
        ids = self.batches[number]
        self.optimizer.zero_grad()
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self, folder):
        dcp.save(
            {
                "model": get_model_state_dict(self.model),
                "optim": get_optimizer_state_dict(self.model, self.optimizer),
                "step": BEFORE,
                "epoch": 1,
            },
            checkpoint_id=folder,
            no_dist=True,
        )


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(tmp_path_factory, request):
    return write_model(tmp_path_factory.mktemp("model") / "it", tied=request.param)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    import numpy

    file = make_tokens(tmp_path_factory.mktemp("tokens") / "train.bin", BATCH * LENGTH * 10, 131)
    return file, numpy.fromfile(file, dtype=numpy.uint16).astype(numpy.int64)


def going_on(program, model, tokens, folder, **config):
    """Without shuffling the data are taken from the first sample again."""
    return Job(
        program,
        model,
        folder,
        dataset=str(tokens[0]),
        max_seq_length=LENGTH,
        train_batch_size=2,
        shuffle=False,
        max_steps=BEFORE + AFTER,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        clip_grad_norm=0,
        save_steps=None,
        save_final=False,
        **config,
    )


def test_a_run_goes_on_with_weights_optimizer_and_step(fsdp_program, model, tokens, tmp_path):
    torch_run = TorchRun(model, tokens[1])
    for number in range(BEFORE):
        torch_run.step(number)
    torch_run.save(tmp_path / "dcp")
    run(fsdp_program, "convert", tmp_path / "dcp", tmp_path / "moved", "--to", "fsdp")
    job = going_on(fsdp_program, model, tokens, tmp_path / "job", resume_from_checkpoint=str(tmp_path / "moved"))
    result = job.run(ranks=2)
    assert result.returncode == 0, result.stdout + result.stderr
    for said in [
        f"saved after step {BEFORE}",
        "data: not in the checkpoint, starts at the first sample",
        "random numbers: not in the checkpoint, seeded anew",
        f"schedule after {BEFORE} steps",
        '"lr":0.01',
    ]:
        assert said in result.stdout
    losses = {step: row["loss"] for step, row in job.metrics().items()}
    expected = {BEFORE + 1 + number: torch_run.step(number) for number in range(AFTER)}
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    # Without the optimizer's state the second loss would be another one.
    fresh = TorchRun(model, tokens[1])
    fresh.model.load_state_dict(dcp_model(tmp_path / "dcp", fresh.model))
    fresh.step(0)
    assert fresh.step(1) != pytest.approx(losses[BEFORE + 2], rel=100 * TOLERANCE)


def dcp_model(folder, model):
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state["model"]


def test_several_parameter_groups_come_under_the_options_of_the_config(fsdp_program, model, tokens, tmp_path):
    torch_run = TorchRun(model, tokens[1], groups_of)
    torch_run.step(0)
    torch_run.save(tmp_path / "dcp")
    run(fsdp_program, "convert", tmp_path / "dcp", tmp_path / "moved", "--to", "fsdp")
    job = going_on(fsdp_program, model, tokens, tmp_path / "job", resume_from_checkpoint=str(tmp_path / "moved"))
    result = job.run()
    assert result.returncode == 0, result.stdout + result.stderr
    assert '"beta1":0.8' in result.stdout and '"beta1":0.9' in result.stdout
    assert min(job.metrics()) == 2


def test_weights_alone_and_numbered_parameters_are_refused_with_a_way(fsdp_program, model, tokens, tmp_path):
    torch_run = TorchRun(model, tokens[1])
    torch_run.step(0)
    dcp.save({"model": get_model_state_dict(torch_run.model)}, checkpoint_id=tmp_path / "weights", no_dist=True)
    run(fsdp_program, "convert", tmp_path / "weights", tmp_path / "moved", "--to", "fsdp")
    job = going_on(fsdp_program, model, tokens, tmp_path / "job", resume_from_checkpoint=str(tmp_path / "moved"))
    result = job.run()
    assert result.returncode == 2 and "json.exception" not in result.stderr
    assert "holds no optimizer state" in result.stderr and "--to hf" in result.stderr
    dcp.save(
        {"model": get_model_state_dict(torch_run.model), "optim": torch_run.optimizer.state_dict()},
        checkpoint_id=tmp_path / "numbered",
        no_dist=True,
    )
    said = run(fsdp_program, "convert", tmp_path / "numbered", tmp_path / "x", "--to", "fsdp", status=1)
    assert "get_optimizer_state_dict" in said

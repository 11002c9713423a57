"""What a run leaves to look at: metrics.csv and TensorBoard's event files."""

import csv
import json
import math
import shutil

import numpy
import pytest

from resume_support import Job, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "it")


def rows_that_count(folder):
    """The lines of metrics.jsonl, by step and kind: of two the later counts."""
    rows = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows[row["step"], "eval_loss" in row] = row
    return [rows[key] for key in sorted(rows)]


def resumed_run(program, model, folder):
    """Five steps, then on from the checkpoint behind the fourth up to seven: the fifth is logged twice."""
    job = Job(program, model, folder, report_to=["csv", "tensorboard"], do_eval=True, eval_dataset="dummy:4",
              save_final=False)
    assert job.run(overrides=["max_steps=5"]).returncode == 0
    shutil.rmtree(job.output / "checkpoint-5")
    again = job.run(overrides=["max_steps=7"], ranks=2)
    assert again.returncode == 0, again.stderr
    assert "resumed from" in again.stdout
    return job.output


@pytest.fixture(scope="module")
def output(fsdp_program, model, tmp_path_factory):
    return resumed_run(fsdp_program, model, tmp_path_factory.mktemp("resumed"))


def test_csv_holds_each_step_once(output):
    with open(output / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    want = rows_that_count(output)
    want.remove(next(row for row in want if row["step"] == 5 and "eval_loss" in row))  # of the run's first part
    assert [(int(row["step"]), bool(row["eval_loss"])) for row in table] == [
        *((step, False) for step in range(1, 8)), (7, True)]
    for row, values in zip(table, want, strict=True):
        assert {key: float(value) for key, value in row.items() if value} == values


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_each_step_once(output):
    assert len(list((output / "runs").iterdir())) == 2
    found = scalars(output / "runs")
    rows = [row for row in rows_that_count(output) if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, 8))
    for key in set(rows[0]) - {"step"}:
        assert found[f"train/{key}"] == [(row["step"], float(numpy.float32(row[key]))) for row in rows], key
    evaluations = [row for row in rows_that_count(output) if "eval_loss" in row]
    assert found["eval/loss"] == [(7, float(numpy.float32(evaluations[-1]["eval_loss"])))]
    assert len(found) == len(rows[0])


def test_tensorboard_forgets_a_run_that_was_started_over(fsdp_program, model, tmp_path):
    job = Job(fsdp_program, model, tmp_path, report_to=["tensorboard"], save_steps=None, resume_from_checkpoint=None)
    for steps in (6, 3):
        assert job.run(overrides=[f"max_steps={steps}"]).returncode == 0
    assert [step for step, _ in scalars(job.output / "runs")["train/loss"]] == [1, 2, 3]


def test_what_is_no_number_stays_one_in_all_outputs(fsdp_program, model, tmp_path):
    job = Job(fsdp_program, model, tmp_path, report_to=["csv", "tensorboard"], learning_rate=1e30, save_final=False)
    assert job.run().returncode == 0
    assert rows_that_count(job.output)[-1]["loss"] is None
    with open(job.output / "metrics.csv", newline="") as file:
        assert list(csv.DictReader(file))[-1]["loss"] == "nan"
    assert math.isnan(scalars(job.output / "runs")["train/loss"][-1][1])

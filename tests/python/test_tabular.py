"""`fsdp train` trains the DHEN of examples/adult.json on census data: dense layers in shards, tables split over the
ranks."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import load_file

from fsdp_train import fsdp_train

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adult")
    result = subprocess.run(
        [sys.executable, ROOT / "scripts/prepare_tabular.py", "--output", folder],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder, result.stdout


@pytest.fixture(scope="module")
def config(prepared):
    folder, _ = prepared
    return json.loads((ROOT / "examples/adult.json").read_text()) | {
        "dataset": str(folder / "adult_train.safetensors"),
        "eval_dataset": str(folder / "adult_eval.safetensors"),
    }


def rows_of(folder):
    """Whole tables, from the files of all ranks that saved."""
    files = [load_file(file) for file in sorted(folder.glob("rows-*.safetensors"))]
    return {name: numpy.concatenate([file[name] for file in files]) for name in files[0]}


def test_what_is_prepared_is_what_the_config_says(prepared, config):
    folder, text = prepared
    train, evaluation = load_file(config["dataset"]), load_file(config["eval_dataset"])
    assert f'"table_rows": {json.dumps(config["model"]["table_rows"])}' in text
    assert (train["categorical"].max(0) < config["model"]["table_rows"]).all()
    assert train["numeric"].shape[1] == config["model"]["num_numeric_features"]
    assert len(train["labels"]) + len(evaluation["labels"]) == 48842
    assert numpy.abs(train["numeric"].mean(0)).max() < 1e-3 and numpy.abs(train["numeric"].std(0) - 1).max() < 1e-3


def test_learns_incomes(fsdp_program, config, tmp_path):
    """Better than the share of high incomes alone tells, and over two ranks as over one."""
    labels = load_file(config["eval_dataset"])["labels"]
    share = labels.mean()
    knowing_the_share = -share * numpy.log(share) - (1 - share) * numpy.log(1 - share)
    run = fsdp_train(fsdp_program, config, 2, tmp_path / "two")
    assert run.losses[0] == pytest.approx(0.69, abs=0.2)
    assert knowing_the_share > 0.5
    assert run.eval_loss < 0.34
    alone = fsdp_train(fsdp_program, config | {"train_batch_size": 2 * config["train_batch_size"]}, 1, tmp_path / "one")
    assert run.losses[:20] == pytest.approx(alone.losses[:20], rel=1e-3)
    assert run.eval_loss == pytest.approx(alone.eval_loss, abs=0.005)

    tables = rows_of(run.final)
    assert [len(tables[f"table.{table}"]) for table in range(8)] == config["model"]["table_rows"]
    again = fsdp_train(
        fsdp_program,
        {key: value for key, value in config.items() if key != "model"}
        | {"model_path": str(run.final), "max_steps": 1, "learning_rate": 0, "sparse_learning_rate": 0},
        3,
        tmp_path / "again",
    )
    assert again.eval_loss == pytest.approx(run.eval_loss, abs=1e-5)
    for name, rows in rows_of(again.final).items():
        assert (rows == tables[name]).all(), name

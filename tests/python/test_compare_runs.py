"""benchmarks/compare end to end, in its smallest sizes."""

import json
import os
import re
import subprocess
import sys

import pytest

from conftest import SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "benchmarks"))
from comparison import models, network, runner, workbench
from comparison.experiments import scaling
from comparison.jobs import DDP, OURS, PLAIN, of_strategies, variant
from comparison.torch_ranks import TorchRanks


@pytest.fixture(scope="module")
def setting(build_dir, tmp_path_factory):
    with TorchRanks() as torch_ranks, open("/dev/null", "w") as log:
        yield runner.Setting(build_dir, tmp_path_factory.mktemp("compare"), 1, 1, 120, torch_ranks, port=28950, log=log)


@pytest.fixture
def job(setting):
    spec, batch = workbench.MODELS["smoke"]["deepvit"]
    return workbench.make_job(setting, spec, batch, "smoke", 2)


def test_experiments_1_2_5_6_and_7(build_dir, tmp_path):
    settings = ["--experiment", "1", "2", "5", "6", "7", "--budget", "smoke", "--rounds", "1", "--ranks", "2"]
    folders = ["--out", tmp_path / "out", "--folder", tmp_path / "models", "--build-dir", build_dir]
    command = [sys.executable, SOURCE_DIR / "benchmarks/compare", *settings, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documents = {number: json.loads((tmp_path / f"out/experiment-{number}.json").read_text()) for number in "12567"}
    for document in documents.values():
        assert document["schema_version"] == 1 and document["versions"]["torch"] and document["machine"]["cores"]
        assert "--experiment 1 2 5 6 7" in document["command"]
        free = [row for row in document["rows"] if not limited(row)]
        assert {row["status"] for row in free} == {"measured"}, free
    trained = [row for row in documents["2"]["rows"] if not limited(row)]
    assert {row["side"] for row in trained} == {"fsdp.cpp", "DDP", "FSDP1", "FSDP2"}
    assert all(row["loss_difference"] <= 1e-3 and row["figures"]["step_seconds"]["median"] > 0 for row in trained)
    check_limit([row for row in documents["2"]["rows"] if limited(row)], (tmp_path / "out/experiment-2.md").read_text())
    assert {row["side"] for row in documents["1"]["rows"]} == {"fsdp.cpp", "c10d"}
    assert {row["side"] for row in documents["5"]["rows"]} == {"fsdp.cpp", "DDP", "FSDP1", "FSDP2", "DCP"}
    check_one_host(documents["6"]["rows"])
    check_decoders(documents["7"]["rows"])
    for number in "12567":
        text = (tmp_path / f"out/experiment-{number}.md").read_text()
        images = re.findall(r' src="([^"]+)\.png"', text)
        assert images and all(
            (tmp_path / f"out/{name}{kind}").stat().st_size > 1000 for name in images for kind in (".png", "-dark.png")
        )


def limited(row):
    return row.get("job", {}).get("memory_limit") is not None


def check_limit(rows, page):
    """What is sharded fits under the limit, on both sides, and what is not does not, on both sides."""
    assert {row["variant"]: row["status"] for row in rows} == {
        "fsdp.cpp full_shard": "measured",
        "fsdp.cpp full_shard, auto_units": "measured",
        "FSDP1 full_shard": "measured",
        "FSDP2 full_shard": "measured",
        "fsdp.cpp no_shard": "out of memory",
        "DDP": "out of memory",
    }, rows
    assert all(row["figures"]["base_mib"]["median"] > 0 for row in rows if row["status"] == "measured")
    assert "at most 160 MiB a process" in page and "| DDP (out of memory) |" in page and "DefaultCPUAllocator" in page


def check_decoders(rows):
    """Two models, each of one process and of two ranks, with the same losses."""
    groups = {row["group"] for row in rows}
    assert len(groups) == 4 and len(rows) == 14, groups
    assert all(row["loss_difference"] <= 1e-3 and row["figures"]["step_seconds"]["median"] > 0 for row in rows)


def check_one_host(rows):
    assert {row["variant"]: row["ranks"] for row in rows} == {
        "PyTorch alone": 1,
        "fsdp.cpp alone": 1,
        "fsdp.cpp shared memory": 2,
        "fsdp.cpp Gloo": 2,
        "DDP": 2,
        "FSDP1": 2,
        "FSDP2": 2,
        "PyTorch apart": 2,
        "fsdp.cpp apart": 2,
    }
    losses = {row["variant"]: row["losses"][0] for row in rows}
    assert losses["fsdp.cpp apart"] == losses["fsdp.cpp alone"] != losses["DDP"], "each trains what one alone does"
    figures = {row["variant"]: row["figures"] for row in rows}
    assert all(row["loss_difference"] <= 1e-3 for row in rows)
    looked_at = {name: of_row["host_mib"]["median"] for name, of_row in figures.items() if "host_mib" in of_row}
    assert looked_at.keys() == figures.keys() - {"PyTorch apart", "fsdp.cpp apart"} and min(looked_at.values()) > 10, (
        looked_at
    )
    assert {name for name, of_row in figures.items() if "allocated_mib" not in of_row} == {"fsdp.cpp shared memory"}
    if "sent_mib" in figures["DDP"]:
        assert (
            figures["fsdp.cpp shared memory"]["sent_mib"]["median"]
            < 0.1 * figures["fsdp.cpp Gloo"]["sent_mib"]["median"]
        )


def test_a_side_with_wrong_losses_is_void(setting, job, monkeypatch):
    """Ours trains with another learning rate, which only the losses can tell."""
    run_variant = runner.run_variant

    def run(setting, chosen, job, place):
        wrong = {"learning_rate": 1e-2} if chosen.side == OURS else {}
        return run_variant(setting, chosen, type(job)(**{**vars(job), **wrong}), place)

    monkeypatch.setattr(runner, "run_variant", run)
    rows = {
        row["variant"]: row
        for row in runner.measure(setting, "wrong", of_strategies(("no_shard",)), job, network.Place(2))
    }
    assert rows["DDP"]["status"] == "measured"
    assert (
        rows["fsdp.cpp no_shard"]["status"] == "void"
        and "losses differ from those of DDP" in rows["fsdp.cpp no_shard"]["reason"]
    )
    assert rows["fsdp.cpp no_shard"]["rounds"]  # it is kept


def test_traffic_follows_the_papers_formulas(setting, job):
    """By the kernel's counters, in a namespace of its own; packets' headers and checks come on top."""
    with network.alone(2) as place:
        if not place.counted:
            pytest.skip("network namespaces are not permitted here")
    spec, batch = workbench.MODELS["smoke"]["deepvit"]
    rows = workbench.train(setting, "traffic", of_strategies(("full_shard", "shard_grad_op")), job, 2)
    sent = {row["variant"]: row["figures"]["sent_of_formula"]["median"] for row in rows}
    assert 1.0 <= sent["fsdp.cpp shard_grad_op"] < sent["FSDP2 shard_grad_op"]
    assert sent["fsdp.cpp full_shard"] < sent["FSDP2 full_shard"]


def test_a_side_that_runs_out_of_memory_is_said_to(setting):
    """38 MiB of weights."""
    spec = models.model(
        "large",
        "deepvit",
        16,
        image_size=16,
        patch_size=4,
        hidden_size=512,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=2048,
        num_labels=5,
    )
    limited = workbench.make_job(setting, spec, 1, "smoke", 2, memory_limit=30 << 20)
    rows = runner.measure(setting, "limit", (variant(OURS), variant("FSDP2")), limited, network.Place(2))
    assert [row["status"] for row in rows] == ["out of memory"] * 2, rows


def test_features_count_flops_that_are_computed_again(setting):
    """3 blocks of 17 tokens, by hand: weights 4 x 32² + 2 x 32 x 64, maps of 2 heads; patches of 48 values, 5
    classes."""
    rows = scaling.features(workbench.Call(setting, "smoke", (1, 2)))
    assert {(row["status"], row["ranks"]) for row in rows} == {("measured", 2)}, rows
    blocks = 3 * 2 * (17 * (4 * 32**2 + 2 * 32 * 64) + 2 * 17**2 * 32 + 2**2 * 17**2)
    model = 3 * blocks + 6 * (16 * 48 * 32 + 32 * 5)
    for row in rows:
        figures, recomputed = row["rounds"][0], "checkpointing" in row["group"]
        assert figures["tflops"] == pytest.approx(1e-12 * 2 * 2 * model / figures["step_seconds"])
        assert ("hardware_tflops" in figures) == recomputed
        if recomputed:
            assert figures["hardware_tflops"] / figures["tflops"] == pytest.approx(1 + blocks / model)
    assert "hardware TFLOPS" in scaling.report(rows)


def test_one_rank_and_more_ranks_than_cores(setting):
    rows = []
    for ranks in (1, 8):
        job = workbench.make_job(setting, workbench.MODELS["smoke"]["deepvit"][0], 1, "smoke", ranks)
        rows += workbench.train(setting, f"{ranks}", of_strategies(("full_shard",)), job, ranks)
    assert {row["status"] for row in rows} == {"measured"}, rows
    assert all(row["indicative"] for row in rows if row["ranks"] > (os.cpu_count() or 1))


def test_a_side_that_cannot_do_the_job_has_failed(setting, job):
    impossible = (variant(DDP), variant(PLAIN, strategy="no_shard"))
    rows = runner.measure(setting, "unsupported", impossible, job, network.Place(2))
    assert [row["status"] for row in rows] == ["failed"] * 2
    assert "DDP shards nothing" in rows[0]["reason"] and "nothing around the model is one process" in rows[1]["reason"]


def test_models_are_made_anew_for_other_sizes(tmp_path):
    first, second = (models.model("m", "deepvit", 8, hidden_size=width) for width in (8, 16))
    assert models.file_name(first) != models.file_name(second)

"""What a run leaves to look at: metrics.csv, TensorBoard's event files, and the page of `fsdp report` in a browser."""

import csv
import html
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest

from report_browser import WIDTH, look_at, run_browser
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
    job = Job(
        program, model, folder, report_to=["csv", "tensorboard"], do_eval=True, eval_dataset="dummy:4", save_final=False
    )
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
        *((step, False) for step in range(1, 8)),
        (7, True),
    ]
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
    job = Job(
        fsdp_program,
        model,
        tmp_path,
        report_to=["tensorboard"],
        save_steps=None,
        resume_from_checkpoint=None,
        overwrite_output_dir=True,
    )
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


# ---------------------------------------------------------------- the page of `fsdp report`, in a browser


HOSTILE = "second <img src=x onerror=throw(1)> & 'co'"


@pytest.fixture(scope="module")
def page(fsdp_program, model, tmp_path_factory):
    """Of two real runs over two ranks."""
    folder = tmp_path_factory.mktemp("page")
    outputs = []
    for name, config in {"sharded": {}, HOSTILE: {"learning_rate": 3e-2, "sharding_strategy": "no_shard"}}.items():
        job = Job(
            fsdp_program,
            model,
            folder / "jobs",
            max_steps=12,
            dataset="dummy:200",
            do_eval=True,
            eval_dataset="dummy:4",
            save_final=False,
            save_steps=None,
            resume_from_checkpoint=None,
            trace_path=str(folder / f"trace-{len(outputs)}.json"),
            output_dir=str(folder / name),
            **config,
        )
        result = job.run(ranks=2)
        assert result.returncode == 0, result.stderr
        outputs.append(folder / name)
    target = folder / "report.html"
    result = subprocess.run(
        [fsdp_program, "report", *outputs, "--out", target], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return target


@pytest.fixture(scope="module", params=["light", "dark"])
def seen(request, page, tmp_path_factory):
    folder = os.environ.get("FSDP_SCREENSHOTS")
    return look_at(page, Path(folder).resolve() if folder else tmp_path_factory.mktemp("seen"), request.param == "dark")


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())[1])


def test_the_page_draws_without_a_complaint(page, seen):
    assert seen.complaints == []
    assert seen.cut == []
    assert seen.width <= WIDTH
    assert f'data-drawn="{len(data_of(page)["plots"]) + 2}"' in seen.dom
    assert page.stat().st_size < 500_000


def test_themes_differ(page, seen):
    background = seen.image.getpixel((2, 2))
    assert background == seen.colours["back"]
    assert (sum(background) < 150) != (sum(seen.colours["text"]) < 150)


def test_each_curve_is_drawn_in_its_colour(page, seen):
    plots = data_of(page)["plots"]
    assert [plot["id"] for plot in plots][:3] == ["loss", "grad_norm", "learning_rate"]
    assert {"tflops", "peak_memory_bytes"} <= {plot["id"] for plot in plots}
    for plot in plots:
        assert {curve["run"] for curve in plot["curves"]} == {0, 1}
        drawn = [seen.pixels(f"plot-{plot['id']}", f"series-{run}") for run in (0, 1)]
        assert max(drawn) > 100, plot["id"]
        assert min(drawn) > 100 or lie_on_one_another(plot["curves"]), plot["id"]
        assert seen.pixels(f"plot-{plot['id']}", "series-3") == 0, plot["id"]


def lie_on_one_another(curves):
    most = max(max(curve["values"]) for curve in curves)
    return all(abs(a - b) < most / 100 for a, b in zip(curves[0]["values"], curves[1]["values"], strict=True))


def test_the_timeline_has_a_bar_for_each_range(page, seen):
    for step in data_of(page)["steps"]:
        ranges = [bar for rank in step["ranks"] for row in rank["rows"] for bar in row["ranges"]]
        figure = re.search(rf'<figure id="step-{step["run"]}-timeline">.*?</figure>', seen.dom, re.S)[0]
        assert figure.count("<rect ") == sum(end > begin for begin, end, *_ in ranges) > 20
        assert [rank["rank"] for rank in step["ranks"]] == [0, 1]
        for kind in ("compute", "gather", "reduce") if step["run"] == 0 else ("compute", "reduce"):
            assert seen.pixels(f"step-{step['run']}-timeline", kind) > 30, kind


def test_memory_over_a_step_is_drawn_by_category(page, seen):
    for step in data_of(page)["steps"]:
        categories = step["ranks"][0]["categories"]
        assert categories[:3] == ["parameter shards", "optimizer state", "gradient shards"]
        last = step["ranks"][0]["memory"][-1][1:]
        assert last[0] > 10_000
        assert 0 <= last[1] - 2 * last[0] < 100, "AdamW keeps two numbers for each of a parameter's, and counts steps"
        name = f"step-{step['run']}-memory"
        peaks = [max(sample[1 + i] for sample in step["ranks"][0]["memory"]) for i in range(len(categories))]
        filled = [i for i, peak in enumerate(peaks) if peak > 0.02 * sum(peaks)]
        assert {0, 1, 2} <= set(filled), "a small model holds little else"
        for i in filled:
            assert seen.pixels(name, f"series-{i}", alpha=0.75, tolerance=16) > 300, categories[i]
        assert seen.dom.count(f'<figure id="{name}">') == 1


def test_names_are_text(page, seen):
    assert "<img" not in seen.dom.split('<script type="application/json"')[0]
    assert html.escape(HOSTILE, quote=False) in seen.dom


# Presses what can be pressed, and says what came of it in the page's title.
HANDLE = """<script>addEventListener("load", () => {
  const change = (id, set) => {
    const element = document.getElementById(id);
    set(element);
    element.dispatchEvent(new Event("change"));
  };
  change("log-scale", (box) => { box.checked = true; });
  change("smoothing", (field) => { field.value = 3; });
  for (const select of document.querySelectorAll("select")) {
    select.value = 1;
    select.dispatchEvent(new Event("change"));
  }
  for (const canvas of document.querySelectorAll(".plot canvas:last-of-type")) {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new MouseEvent("mousemove", {
      bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 }));
  }
  const legends = [...document.querySelectorAll("figure:not([id$=timeline]) .legend")].map((e) => e.textContent);
  document.title = JSON.stringify(legends);
});</script>"""


def handled(page, folder):
    """The legends after that."""
    handling = folder / "handling.html"
    handling.write_text(page.read_text().replace("</body>", HANDLE + "</body>"))
    dom, complaints = run_browser(handling, folder, 3000, False, "--dump-dom")
    assert complaints == []
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.S)[1]))


def test_legends_tell_values_under_the_pointer(page, tmp_path):
    legends = handled(page, tmp_path)
    assert len(legends) == len(data_of(page)["plots"]) + 2
    for legend in legends[:-2]:
        assert re.search(r"sharded: \d.*step \d", legend), legend
    for legend in legends[-2:]:
        assert re.search(r"optimizer state: [\d.]+ KiB.*ms$", legend), legend


ODD_METRICS = {
    "nothing": [],
    "one step": [{"step": 1, "loss": 2.0}],
    "no numbers": [{"step": step, "loss": None, "grad_norm": None} for step in range(1, 9)],
    "negative, huge and tiny": [
        {"step": step, "loss": value}
        for step, value in enumerate([-1e308, 1e308, 1e29, -1e29, 5e-324, 0, -3.5, True], start=2**62)
    ],
    "images": [{"step": step, "loss": 1 / step, "samples_per_second": 3.5} for step in range(1, 9)],
}


@pytest.mark.parametrize("name", ODD_METRICS)
def test_odd_metrics_are_drawn_without_a_complaint(fsdp_program, tmp_path, name):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ODD_METRICS[name]))
    result = subprocess.run([fsdp_program, "report", tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    seen = look_at(tmp_path / "report.html", tmp_path / "seen")
    assert seen.complaints == []
    assert "data-drawn" in seen.dom
    assert seen.cut == []
    if name in ("one step", "images"):
        assert seen.pixels("plot-loss", "series-0") > 10

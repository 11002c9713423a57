"""The page of `fsdp plan --html` in a browser, and the line that says on a terminal how far a plan is."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from report_browser import WIDTH, look_at

RUN = ["--model", "gpt2", "--set", "max_seq_length=1024", "--set", "train_batch_size=32"]


@pytest.fixture(scope="module", params=["does not fit", "on CPUs"])
def page(request, fsdp_program, tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "plan.html"
    cluster = {"does not fit": "2xrtx4090", "on CPUs": "4xcpu"}[request.param]
    result = subprocess.run(
        [fsdp_program, "plan", *RUN, "--cluster", cluster, "--html", target],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == (4 if cluster == "2xrtx4090" else 0), result.stderr
    assert result.stderr == ""
    return target


@pytest.fixture(params=["light", "dark"])
def seen(request, page, tmp_path):
    folder = os.environ.get("FSDP_SCREENSHOTS")
    return look_at(page, Path(folder).resolve() / page.parent.name if folder else tmp_path, request.param == "dark")


def test_the_page_draws_memory_by_purpose(page, seen):
    assert seen.complaints == []
    assert seen.cut == []
    assert seen.width <= WIDTH
    assert 'data-drawn="1"' in seen.dom
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())[1])
    (rank,) = data["steps"][0]["ranks"]
    assert {"parameter shards", "optimizer state", "activations"} <= set(rank["categories"])
    most = [max(sample[1 + i] for sample in rank["memory"]) for i in range(len(rank["categories"]))]
    for i, peak in enumerate(most):
        if peak > 0.05 * sum(most):
            assert seen.pixels("step-0-memory", f"series-{i}", alpha=0.75, tolerance=16) > 300, rank["categories"][i]


def test_the_page_has_the_tables(page):
    text = page.read_text()
    of_device = "One step" if "RTX 4090" in text else "Memory over a step"
    for heading in (of_device, "Peaks", "Totals", "Largest tensors at the peak", "Units"):
        assert f"<h2>{heading}</h2>" in text
    if "verdict does-not-fit" in text:
        assert "--set activation_checkpointing=true" in text


def on_a_terminal(command):
    """What the command writes to stderr if that is a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower, env={**os.environ, "TERM": "xterm"})
    os.close(follower)
    written = b""
    try:
        while part := os.read(leader, 4096):
            written += part
    except OSError:
        pass  # the other end is closed
    os.close(leader)
    return process.wait(timeout=300), written.decode()


def test_a_terminal_shows_how_far_a_plan_is(fsdp_program):
    status, written = on_a_terminal([fsdp_program, "plan", *RUN, "--cluster", "2xrtx4090"])
    assert status == 4
    lines = written.split("\r\x1b[K")
    assert "planning: step 2 of 3" in lines
    assert "planning change 2 of 4, --set activation_checkpointing=true: step 3 of 3" in lines
    assert lines[-1] == ""
    assert "\n" not in written

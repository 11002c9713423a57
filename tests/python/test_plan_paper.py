"""`fsdp plan --paper` as a whole: the paper's volumes, the page in a browser, and the checked-in table."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import SOURCE_DIR
from report_browser import WIDTH, look_at

TABLE = SOURCE_DIR / "docs/benchmarks/paper-plans.md"


@pytest.fixture(scope="module")
def paper(fsdp_program, tmp_path_factory):
    page = tmp_path_factory.mktemp("paper") / "paper.html"
    command = [fsdp_program, "plan", "--paper", "--json", "--html", page]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout), page


def test_volumes_are_exact(paper):
    document, _ = paper
    assert len(document["volumes"]) == 14
    assert [volume for volume in document["volumes"] if not volume["exact"]] == []


def test_the_table_has_the_statements_and_the_bytes(paper):
    """Times change with the numbers of devices; these do not."""
    document, _ = paper
    table = TABLE.read_text()
    rows = re.findall(r"^\| (\d\(.*?) \| (.*?) \| (?:agrees|differs|not checked) \|", table, flags=re.M)
    assert rows == [(check["figure"], check["what"]) for check in document["checks"]]
    for volume in document["volumes"]:
        assert f"{volume['planned_bytes']:,}, exact" in table


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_draws_each_figure(paper, theme, tmp_path):
    document, page = paper
    folder = os.environ.get("FSDP_SCREENSHOTS")
    seen = look_at(page, Path(folder).resolve() / "paper" if folder else tmp_path, theme == "dark")
    assert seen.complaints == []
    assert seen.cut == []
    assert seen.width <= WIDTH
    assert f'data-drawn="{len(document["figures"])}"' in seen.dom
    for figure in document["figures"]:
        last = len(figure["curves"]) - 1  # drawn above the others
        assert seen.pixels(f"plot-{figure['id']}", f"series-{last}") > 10, figure["title"]
        for curve in figure["curves"]:
            assert curve["name"] in seen.dom

"""The checked-in page of Llama-3.1-8B's plans is that of this build."""

import subprocess
import sys

from conftest import SOURCE_DIR

SCRIPT = SOURCE_DIR / "benchmarks/planned_llama.py"
PAGE = SOURCE_DIR / "docs/benchmarks/llama-8b-on-four-gpus.md"


def check(build_dir, page):
    command = [sys.executable, SCRIPT, "--check", "--build-dir", build_dir, "--output", page]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_rows_of_the_page_are_planned_again(fsdp_program):
    result = check(fsdp_program.parent, PAGE)
    assert result.returncode == 0, f"run benchmarks/planned_llama.py: {result.stdout}{result.stderr}"


def test_another_figure_is_found(fsdp_program, tmp_path):
    page = tmp_path / "page.md"
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| full_shard | 4 | no | ")]
    page.write_text(PAGE.read_text().replace(rows[0], rows[1]))
    result = check(fsdp_program.parent, page)
    assert result.returncode == 1
    assert rows[0] in result.stdout

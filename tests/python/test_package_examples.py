"""Every script of examples/python runs on two ranks, and its own check passes."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys

import pytest
import torch.distributed as dist

from package_hugging_face import launch
from package_ranks import SOURCE_DIR, library_environment, run_ranks
from ports import free_port

FOLDER = SOURCE_DIR / "examples/python"
# Each script, and what its rank 0 prints.
PRINTED = {
    "first": r"loss \d+\.\d+ -> \d\.\d+; rank 0 of 2 holds 41\d\d\d of 82689 parameters",
    "fsdp2_script": r"loss \d\.\d+, gradient norm \d\.\d+ after 8 steps",
    "lora": r"LoRA: loss 3\.\d+ -> 3\.\d+; 8192 parameters train, 10896 frozen ones are here",
    "trainer": r"FSDPLlamaForCausalLM: loss (0\.\d+) after 20 steps, \1 when resumed after 10",
}


def script(rank, size, port, path):
    """Runs a script as a launcher does, in a process that has imported its libraries; returns what it prints."""
    dist.destroy_process_group()
    launch(rank, size, port, engine=None)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def run_script(path):
    """What rank 0 of two prints."""
    with free_port() as port:
        return run_ranks(2, script, port, path)[0]


def test_every_script_is_run_here():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(PRINTED)
    readme = (FOLDER / "README.md").read_text()
    assert sorted(set(re.findall(r"\]\((\w+)\.py\)", readme))) == sorted(PRINTED)


@pytest.mark.parametrize("name", ["lora", "trainer"])
def test_script(name):
    assert re.search(PRINTED[name], run_script(FOLDER / f"{name}.py"))


def test_first_script_with_torchrun(tmp_path):
    with free_port() as port:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
        done = subprocess.run(
            [*launcher, FOLDER / "first.py"],
            env={**os.environ, **library_environment(), "TMPDIR": str(tmp_path)},  # where the launcher leaves a folder
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED["first"] + "\n", done.stdout)


def test_converted_script_prints_what_it_printed_with_fsdp2(tmp_path):
    """The diff in README.md, in reverse, makes a script for PyTorch of the converted one."""
    converted = FOLDER / "fsdp2_script.py"
    lines = converted.read_text().splitlines()
    diff = re.search(r"```diff\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)[1].splitlines()
    position, before, after = int(re.fullmatch(r"@@ -(\d+) \+\1 @@", diff[0])[1]), diff[1], diff[2]
    assert len(diff) == 3 and before[0] == "-" and after == "+" + lines[position - 1]
    lines[position - 1] = before[1:]
    original = tmp_path / "fsdp2_script.py"
    original.write_text("\n".join(lines))
    printed = run_script(converted)
    assert re.fullmatch(PRINTED["fsdp2_script"] + "\n", printed) and printed == run_script(original)

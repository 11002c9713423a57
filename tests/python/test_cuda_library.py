"""A program that was linked without LibTorch's CUDA library, as that of a wheel, opens it where LibTorch has one."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    (Path(torch.__file__).parent / "lib/libtorch_cuda.so").exists(), reason="this LibTorch has the real one"
)


@pytest.fixture
def program_says(fsdp_program, tmp_path):
    """Ends in an error: no training is needed to see the library opened."""

    def run():
        command = [fsdp_program, "train", "--config-path", tmp_path / "absent.json"]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 2, result.stderr
        assert "absent.json" in result.stderr
        return result.stderr

    return run


def test_the_library_is_opened(program_says, tmp_path):
    (tmp_path / "cuda.c").write_text(
        "#include <stdio.h>\n"
        '__attribute__((constructor)) static void open(void) { fputs("the CUDA library is here\\n", stderr); }\n'
    )
    library = tmp_path / "libtorch_cuda.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True)
    assert "the CUDA library is here" in program_says()


def test_none_is_no_matter_of_remark(program_says):
    assert "CUDA" not in program_says()


def test_one_that_cannot_be_opened_is_named(program_says, tmp_path):
    (tmp_path / "libtorch_cuda.so").write_text("no library")
    said = program_says()
    assert "warning: no GPU can be used, as LibTorch's CUDA library cannot be opened" in said
    assert f"{tmp_path}/libtorch_cuda.so: file too short" in said or "invalid ELF header" in said

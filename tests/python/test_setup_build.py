"""scripts/build.sh keeps to the compiler that a build folder has; scripts/tidy.sh checks its batches."""

import os
import shutil
import subprocess

import pytest


@pytest.mark.parametrize("wanted", ["g++", "/no/such/compiler"])
def test_another_compiler_than_the_folders_is_refused(source_dir, tmp_path, wanted):
    kept = shutil.which("cmake")  # any program: what it is called is all that counts
    (tmp_path / "CMakeCache.txt").write_text(f"CMAKE_CXX_COMPILER:FILEPATH={kept}\n")
    result = subprocess.run(
        [source_dir / "scripts/build.sh"],
        env={**os.environ, "BUILD_DIR": str(tmp_path), "CXX": wanted},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert f"error: {tmp_path} is configured with {kept}, not with CXX={wanted}" in result.stderr
    assert "make clean" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CMakeCache.txt"]


def test_clang_tidy_reads_what_the_compiler_reads(source_dir, build_dir):
    """One batch with a precompiled header, which only the compiler itself can read."""
    result = subprocess.run(
        [source_dir / "scripts/tidy.sh", "fsdp_trace"],
        env={**os.environ, "BUILD_DIR": str(build_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "clang-tidy over 1 batches" in result.stdout
    assert "clang-tidy found nothing" in result.stdout

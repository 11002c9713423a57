"""scripts/build.sh: a build folder keeps the compiler that it was configured with."""

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

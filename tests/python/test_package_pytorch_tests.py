"""The plug-in that runs PyTorch's own tests against the package, on tests in their manner."""

import os
import subprocess
import sys

import pytest

from package_ranks import SOURCE_DIR, library_environment

pytest.importorskip("expecttest", reason="PyTorch's base classes of tests need it")


def test_tests_on_pytorch_base_classes_run_against_the_package(tmp_path):
    environment = {**os.environ, **library_environment(), "FSDP_CPP_TEST_RANKS": "2", "COLUMNS": "200"}
    environment["TMPDIR"] = str(tmp_path)  # PyTorch's classes leave the files there that ranks met at
    plugin = ["-p", "fsdp_cpp.testing.pytorch_tests", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *plugin, "fsdptest_cases.py"],
        cwd=SOURCE_DIR / "tests/python/support",
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0 and "4 passed" in run.stdout and "skipped" not in run.stdout, run.stdout + run.stderr

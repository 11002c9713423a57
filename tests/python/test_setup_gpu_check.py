"""scripts/gpu_check says what a machine lacks; benchmarks/gpu.py measures all variants, here on the CPU, and says which
failed."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
import torch

GOOD_TORCH = "2.11.0+cu130\n13.0\n1\nSome GPU\n/nowhere/torch\n"
TINY = ["--device=cpu", "--layers=2", "--width=32", "--heads=2", "--vocabulary=64", "--batch=1", "--length=8"]
TINY += ["--turns=1", "--steps=2", "--warm-up=1"]


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def gpu_check(source_dir, tmp_path):
    def run(*options, python, **variables):
        return subprocess.run(
            [source_dir / "scripts/gpu_check", "--python", python, "--build-dir", tmp_path / "build", *options],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def python_with(tmp_path, torch_says):
    (tmp_path / "torch").write_text(torch_says)
    return script(tmp_path / "python", f"cat {tmp_path}/torch")


def compiler_without(tmp_path, header, unless):
    """Says that `header` is missing, unless its arguments hold `unless`."""
    return script(
        tmp_path / "c++",
        f'source=$(cat); case "$source" in *"{header}"*) case "$*" in *"{unless}"*) exit 0;; esac;'
        ' exit 1;; esac; printf "%s" "$source" | c++ "$@"',
    )


def test_machine_without_gpu_is_told_so(gpu_check, tmp_path):
    result = gpu_check(python=sys.executable, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1
    assert ("a GPU: torch" if torch.version.cuda else "a CUDA build of torch: ") in result.stderr
    assert not (tmp_path / "build").exists()


def test_python_without_torch_is_told_so(gpu_check, tmp_path):
    result = gpu_check(python=script(tmp_path / "python", "exit 1"))
    assert result.returncode == 1
    assert "has no torch" in result.stderr and "--python" in result.stderr


@pytest.mark.parametrize(
    "version, too_old",
    [
        ("2.9.1", True),
        ("2.10.0+cu130", True),
        ("1.13.0", True),
        ("2.11.0", False),
        ("2.13.0a0+git12", False),
        ("3.0.0", False),
    ],
)
def test_version_of_torch(gpu_check, tmp_path, version, too_old):
    python = python_with(tmp_path, GOOD_TORCH.replace("2.11.0+cu130", version))
    result = gpu_check("--only", "build", python=python, CXX="no-such-compiler")
    assert ("torch 2.11 or newer" in result.stderr) == too_old
    assert "a compiler for C++20: no-such-compiler is not one" in result.stderr


def test_headers_that_are_missing_are_named_with_their_package(gpu_check, tmp_path):
    compiler = compiler_without(tmp_path, "gtest/", unless="nothing")
    result = gpu_check("--only", "build", python=python_with(tmp_path, GOOD_TORCH), CXX=str(compiler))
    assert result.returncode == 1
    lacking = re.findall(r"^ +(\S+): Debian package (\S+),", result.stderr, re.M)
    assert lacking == [("gtest/gtest.h", "libgtest-dev")]


@pytest.mark.parametrize("folder", ["include", "usr/include"])
def test_prefix_is_searched_for_headers(gpu_check, tmp_path, folder):
    prefix = tmp_path / "prefix"
    (prefix / folder).mkdir(parents=True)
    compiler = compiler_without(tmp_path, "gtest/", unless=prefix / folder)
    result = gpu_check(
        "--only", "build", "--prefix", prefix, python=python_with(tmp_path, GOOD_TORCH), CXX=str(compiler)
    )
    assert "lacks" not in result.stderr
    assert "TORCH_DIR=/nowhere/torch holds no include/ATen/ATen.h" in result.stderr


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["--only", "all"], "--only all"),
        (["--steps", "0"], "--steps 0"),
        (["--gpu"], "--gpu"),
        (["--prefix", "/nowhere"], "--prefix /nowhere"),
        (["--tests"], "--tests needs a value"),
    ],
)
def test_wrong_options_are_refused(gpu_check, options, complaint):
    result = gpu_check(*options, python=sys.executable)
    assert result.returncode == 1
    assert complaint in result.stderr


TEST_PROGRAM = """#!{python}
import json, os, sys
case = {{"name": "Case", "status": "RUN", "result": "COMPLETED"}}
if os.environ["FSDP_TEST_DEVICE"] != "{device}":
    case["failures"] = [{{"failure": "x"}}]
report = sys.argv[1].removeprefix("--gtest_output=json:")
json.dump({{"testsuites": [{{"name": "Suite", "testsuite": [case]}}]}}, open(report, "w"))
"""


@pytest.mark.parametrize(
    "wanted, lines",
    [("cpu", ["1 passed, 0 failed"]), ("another", ["* FAILED a_test: Suite.Case", "0 passed, 1 failed"])],
)
def test_tests_run_on_the_device_and_their_outcome_is_reported(gpu_check, tmp_path, wanted, lines):
    build = tmp_path / "build"
    build.mkdir()
    script(build / "gpu", "")
    (build / "a_test").write_text(TEST_PROGRAM.format(python=sys.executable, device=wanted))
    (build / "a_test").chmod(0o755)
    (build / "CTestTestfile.cmake").write_text(f'add_test([=[a_test]=] "{build}/a_test")\n')
    result = gpu_check("--device", "cpu", "--only", "test", "--tests", "^a_test$", python=sys.executable)
    assert result.returncode == (wanted != "cpu")
    results = (build / "gpu_check.md").read_text()
    assert result.stdout.endswith(results)
    assert [line for line in results.partition("## Tests")[2].splitlines()[3:] if line] == lines


def test_part_without_a_build_says_how_to_make_one(gpu_check):
    result = gpu_check("--device", "cpu", "--only", "bench", python=sys.executable)
    assert result.returncode == 1
    assert "holds no gpu" in result.stderr and "--only build" in result.stderr


def measure(source_dir, tmp_path, *options):
    result = subprocess.run(
        [sys.executable, source_dir / "benchmarks/gpu.py", *TINY, "--folder", tmp_path, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.stdout.splitlines()
        if line.startswith("|")
    ]
    return result, {row[0]: row[1:] for row in rows if row[0] not in ("variant", "---")}


def test_training_steps_of_both_sides_are_measured(source_dir, build_dir, tmp_path):
    result, rows = measure(
        source_dir, tmp_path, "--build-dir", build_dir, "--only", "steps", "--variants", "^fsdp.cpp|FSDP2"
    )
    assert result.returncode == 0, result.stderr
    assert list(rows) == [
        "fsdp.cpp, plain LibTorch",
        "fsdp.cpp",
        "fsdp.cpp, flat",
        "fsdp.cpp, no prefetch",
        "fsdp.cpp, `keep_memory = true`",
        "FSDP2",
    ]
    for step, host, *memory in rows.values():
        assert 0 < float(host) <= float(step)
        assert memory == ["–"] * 4
    assert len((tmp_path / "gpu.jsonl").read_text().splitlines()) == len(rows)


def test_plans_stand_beside_runs(source_dir, build_dir):
    command = [source_dir / "benchmarks/planned_gpu.py", "--device", "cpu", "--steps", "2", "--build-dir", build_dir]
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    (row,) = [line.split("|")[1:-1] for line in result.stdout.splitlines() if line.startswith("| tiny")]
    planned, measured = float(row[1]), float(row[2])
    assert 0.5 < planned / measured < 2
    assert float(row[5]) > 0


def test_variant_that_fails_is_named_and_the_others_go_on(source_dir, tmp_path):
    script(
        tmp_path / "gpu",
        """case "$1" in *flat*) printf "error: out of luck\\nframe #0: c10::Error::Error()\\n" >&2; exit 3;; esac
echo '{"step_ms": [3, 1, 2], "host_ms": [1], "peak_allocated": 3145728, "peak_reserved": 4194304,' \\
     '"retries": 0, "device_allocs": 7}'""",
    )
    result, rows = measure(
        source_dir, tmp_path, "--build-dir", tmp_path, "--only", "steps", "--variants", "^fsdp.cpp(, flat)?$"
    )
    assert result.returncode == 1
    assert rows == {"fsdp.cpp": ["2.00", "1.00", "3", "4", "0", "7"], "fsdp.cpp, flat": ["failed", *[""] * 5]}
    assert "Failed: fake group, fsdp.cpp, flat: error: out of luck" in result.stdout


@pytest.fixture
def ranks(source_dir):
    spec = importlib.util.spec_from_file_location("ranks", source_dir / "benchmarks/ranks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rank_that_fails_ends_the_others(ranks):
    command = ["sh", "-c", 'if [ "$RANK" = 1 ]; then echo "error: no" >&2; exit 5; fi; exec sleep 100']
    with pytest.raises(ranks.RankError, match=r"rank 1 of .*failed \(status 5\):\n.*error: no"):
        ranks.outputs(command, 3, 1, timeout=50)


def test_rank_that_does_not_end_is_ended(ranks):
    with pytest.raises(ranks.RankError, match="rank 0 of sleep 100 did not end in 0.2 s"):
        ranks.outputs(["sleep", "100"], 1, 1, timeout=0.2)

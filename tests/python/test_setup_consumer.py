"""The installed library serves a project of its own through find_package(fsdp)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch


def call(*command, **options):
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=900, check=False, **options
    )
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def environment_without(*names):
    return {key: value for key, value in os.environ.items() if key not in names}


@pytest.fixture(scope="module")
def prefix(build_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    call("cmake", "--install", build_dir, "--prefix", folder)
    return folder


def test_consumer_builds_and_trains(prefix, source_dir, tmp_path):
    plain = environment_without("TORCH_DIR", "LD_LIBRARY_PATH")
    call(
        "cmake",
        "-G",
        "Ninja",
        "-S",
        source_dir / "tests/consumer",
        "-B",
        tmp_path,
        f"-DCMAKE_PREFIX_PATH={prefix}",
        env=plain,
    )
    call("cmake", "--build", tmp_path, env=plain)
    output = call(tmp_path / "consumer", env=plain)
    assert "loss" in output and "0.weight" in output


@pytest.mark.parametrize("standard", ["c++17", "c++20", "c++23"])
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_public_headers_compile_without_a_warning(source_dir, tmp_path, compiler, standard):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    if compiler == "clang++" and standard == "c++23":
        standard = "c++2b"  # as clang called it before version 17
    headers = sorted((source_dir / "include/fsdp").glob("*.h"))
    (tmp_path / "all.cpp").write_text("".join(f"#include <fsdp/{header.name}>\n" for header in headers))
    torch_include = Path(torch.__file__).parent / "include"
    output = call(
        compiler,
        f"-std={standard}",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Wno-unknown-pragmas",
        "-Werror",
        "-I",
        source_dir / "include",
        "-isystem",
        torch_include,
        "-isystem",
        torch_include / "torch/csrc/api/include",
        tmp_path / "all.cpp",
    )
    assert output == ""


def test_another_minor_version_is_refused(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(other LANGUAGES CXX)\nfind_package(fsdp 0.99 REQUIRED)\n"
    )
    result = subprocess.run(
        ["cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode != 0
    assert "0.99" in result.stderr


def test_installed_program_runs_where_it_is_put(prefix):
    output = call(prefix / "bin/fsdp", "--help", env=environment_without("LD_LIBRARY_PATH"))
    assert "train" in output

"""The installed library serves a project of its own through find_package(fsdp), wherever it is moved to."""

import os
import re
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


TORCH = Path(torch.__file__).parent


def environment_without(*names):
    return {key: value for key, value in os.environ.items() if key not in names}


@pytest.fixture(scope="module")
def prefix(build_dir, tmp_path_factory):
    """An installation that was moved since."""
    folder = tmp_path_factory.mktemp("prefix")
    call("cmake", "--install", build_dir, "--prefix", folder / "before")
    return (folder / "before").rename(folder / "after")


def configure(prefix, source, folder, *options):
    """CMake's run for a project that uses the installation, in an environment that does not name LibTorch."""
    return subprocess.run(
        ["cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", *options],
        env=environment_without("TORCH_DIR", "LD_LIBRARY_PATH"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def as_one_line(text):
    """CMake breaks its messages into lines."""
    return re.sub(r"\s+", " ", text)


def installed_binaries(prefix):
    return [prefix / "bin/fsdp", *(path for path in prefix.glob("lib*/**/libfsdp.so.*") if not path.is_symlink())]


def test_installed_files_name_no_folder_of_this_machine(prefix, source_dir, build_dir):
    folders = [str(folder) for folder in (source_dir, build_dir, TORCH, prefix.parent)]
    texts = [path for path in prefix.rglob("*") if path.suffix in (".cmake", ".h")]
    assert len(texts) > 10
    for path in texts:
        assert not [folder for folder in folders if folder in path.read_text()], path
    assert not list(prefix.rglob("fsdp_cpp")), "the Python package is no part of it"
    binaries = installed_binaries(prefix)
    assert len(binaries) == 2
    for path in binaries:
        (run_path,) = re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", call("readelf", "-d", path))
        assert all(folder.startswith("$ORIGIN") for folder in run_path.split(":")), (path, run_path)


def test_libtorch_must_be_named(prefix, source_dir, tmp_path):
    result = configure(prefix, source_dir / "tests/consumer", tmp_path)
    assert result.returncode != 0
    assert "set TORCH_DIR to a LibTorch folder or to the torch folder" in as_one_line(result.stderr)


def test_another_minor_version_of_libtorch_is_refused(prefix, source_dir, tmp_path):
    other = tmp_path / "torch"
    shutil.copytree(TORCH / "include/torch/headeronly", other / "include/torch/headeronly")
    (other / "include/ATen").mkdir()
    (other / "include/ATen/ATen.h").touch()
    (other / "lib").symlink_to(TORCH / "lib")
    header = other / "include/torch/headeronly/version.h"
    header.write_text(re.sub(r"(TORCH_VERSION_MINOR) \d+", r"\1 99", header.read_text()))
    result = configure(prefix, source_dir / "tests/consumer", tmp_path / "build", f"-DTORCH_DIR={other}")
    assert result.returncode != 0
    assert re.search(r'unsuitable version "\d+\.99\.\d+", required range is', as_one_line(result.stderr))


def test_consumer_builds_and_trains(prefix, source_dir, tmp_path):
    plain = environment_without("TORCH_DIR", "LD_LIBRARY_PATH")
    result = configure(prefix, source_dir / "tests/consumer", tmp_path, f"-DTORCH_DIR={TORCH}")
    assert result.returncode == 0, result.stderr
    call("cmake", "--build", tmp_path, env=plain)
    output = call(tmp_path / "consumer", env=plain)
    assert "loss" in output and "0.weight" in output


# C++20 is the project's own build.
@pytest.mark.parametrize("compiler,standard", [("g++", "c++17"), ("g++", "c++23"), ("clang++", "c++17")])
def test_public_headers_compile_without_a_warning(source_dir, tmp_path, compiler, standard):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
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
    result = configure(prefix, tmp_path, tmp_path / "build", f"-DTORCH_DIR={TORCH}")
    assert result.returncode != 0
    assert "0.99" in result.stderr


def test_installed_program_runs_where_it_is_put(prefix, tmp_path):
    """It finds the library beside it, and LibTorch where LD_LIBRARY_PATH says."""
    plain = environment_without("LD_LIBRARY_PATH")
    assert (
        subprocess.run([prefix / "bin/fsdp", "--help"], env=plain, capture_output=True, check=False).returncode == 127
    )
    output = call(prefix / "bin/fsdp", "--help", env={**plain, "LD_LIBRARY_PATH": str(TORCH / "lib")})
    assert "train" in output


@pytest.mark.skipif(torch.version.cuda is not None, reason="CUDA's libraries would have to lie there as well")
def test_installed_program_finds_libtorch_in_the_same_prefix(prefix, tmp_path):
    together = shutil.copytree(prefix, tmp_path / "together", symlinks=True)
    (library,) = together.glob("lib*/**/libfsdp.so.0")
    for file in (TORCH / "lib").iterdir():
        (library.parent / file.name).symlink_to(file)
    assert "train" in call(together / "bin/fsdp", "--help", env=environment_without("LD_LIBRARY_PATH"))

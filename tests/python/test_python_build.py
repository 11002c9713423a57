"""The package is built for the torch of the environment that it is installed into, and says so when there is none."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from wheel_support import TORCH, Environment, call, make_wheel

ROOT = Path(__file__).resolve().parents[2]
FINDER = ROOT / "python/build_support/target_torch.py"

sys.path.insert(0, str(FINDER.parent))

from target_torch import requirement, version_of  # noqa: E402


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("build") / "venv")


def headers(folder, minor):
    """A folder that looks like torch 2.MINOR to the finder."""
    (folder / "include/ATen").mkdir(parents=True)
    (folder / "include/ATen/ATen.h").touch()
    (folder / "include/torch/headeronly").mkdir(parents=True)
    lines = [
        f"#define TORCH_VERSION_{name} {value}\n" for name, value in zip(("MAJOR", "MINOR", "PATCH"), (2, minor, 1))
    ]
    (folder / "include/torch/headeronly/version.h").write_text("".join(lines))
    return folder


ISOLATED = f"""
import runpy, sys
sys.path = [folder for folder in sys.path if not folder.endswith("site-packages")]
runpy.run_path({str(FINDER)!r}, run_name="__main__")
"""


def test_torch_beside_the_interpreter_is_found_in_an_isolated_build(environment):
    """pip hides site-packages from the build, but the interpreter is the environment's."""
    environment.link_torch()
    result = environment.run(environment.python, "-c", ISOLATED)
    environment.unlink_torch()
    assert Path(result.stdout.strip()) == environment.site_packages / "torch"


def test_torch_in_another_folder_is_found_by_its_import(environment):
    environment.share_packages()
    result = environment.run(environment.python, FINDER)
    (environment.site_packages / "shared.pth").unlink()
    assert Path(result.stdout.strip()) == TORCH


def test_a_torch_that_is_named_is_the_only_one(environment, tmp_path):
    other = headers(tmp_path / "torch", 14)
    environment.link_torch()
    assert environment.run(environment.python, FINDER, TORCH_DIR=str(other)).stdout.strip() == str(other)
    missing = environment.run(environment.python, FINDER, TORCH_DIR=str(tmp_path / "absent"))
    environment.unlink_torch()
    assert missing.returncode == 1
    assert f"no torch was found (looked for: {tmp_path / 'absent'})" in missing.stderr


def test_without_torch_the_build_ends_with_what_to_do(environment):
    result = environment.run(environment.python, FINDER)
    assert result.returncode == 1
    assert "no torch was found" in result.stderr and "pip install 'torch>=2.13'" in result.stderr


def test_a_torch_that_is_too_old_is_refused(environment, tmp_path):
    result = environment.run(environment.python, FINDER, TORCH_DIR=str(headers(tmp_path / "torch", 12)))
    assert result.returncode == 1
    assert "torch 2.12.1" in result.stderr and "is too old" in result.stderr


def test_requirements_cover_the_versions_and_no_others(tmp_path):
    assert requirement([version_of(headers(tmp_path, 14))]) == "torch>=2.14,<2.15"
    assert requirement(["2.15.0", "2.13.0", "2.14.1", "2.13.1"]) == "torch>=2.13,<2.16"
    with pytest.raises(SystemExit, match="would lack the versions between"):
        requirement(["2.13.0", "2.15.0"])


def backend(hook, *arguments, **variables):
    """A hook of the build backend, as pip calls it."""
    code = f"import sys, scikit_build_core.build as b; b.{hook}(*sys.argv[1:])"
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def metadata_of(folder, **variables):
    result = backend("prepare_metadata_for_build_wheel", folder, **variables)
    assert result.returncode == 0, result.stderr
    (file,) = folder.glob("*.dist-info/METADATA")
    return file.read_text()


def test_the_package_requires_the_torch_that_it_is_built_for(tmp_path):
    text = metadata_of(tmp_path, TORCH_DIR=str(headers(tmp_path / "torch", 14)))
    (line,) = (line for line in text.splitlines() if line.startswith("Requires-Dist: torch"))
    assert set(line.removeprefix("Requires-Dist: torch").split(",")) == {">=2.14", "<2.15"}


def test_metadata_without_torch_are_an_error_before_anything_is_compiled(tmp_path):
    result = backend("prepare_metadata_for_build_wheel", tmp_path, TORCH_DIR=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith("error: fsdp-cpp: no torch was found"), result.stderr


def compiled_for(folder, minor):
    """A build folder that installs one file for torch 2.MINOR."""
    torch_dir = headers(folder / "torch", minor)
    (folder / "CMakeCache.txt").write_text(f"TORCH_DIR:PATH={torch_dir}\n")
    (folder / "library").write_text(f"for 2.{minor}")
    destination = f"${{CMAKE_INSTALL_PREFIX}}/fsdp_cpp/lib/torch2.{minor}"
    (folder / "cmake_install.cmake").write_text(
        f'if(CMAKE_INSTALL_COMPONENT STREQUAL "python")\n'
        f'file(INSTALL DESTINATION "{destination}" TYPE FILE FILES "{folder}/library")\nendif()\n'
    )
    return folder


def test_one_wheel_holds_the_libraries_for_several_versions(source_dir, tmp_path):
    first, second = (compiled_for(tmp_path / f"build2.{minor}", minor) for minor in (14, 13))
    wheel = make_wheel(source_dir, first, tmp_path / "wheel", "--build-dir", second)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for minor in (13, 14):
            assert archive.read(f"fsdp_cpp/lib/torch2.{minor}/library").decode() == f"for 2.{minor}"
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
        (record,) = (archive.read(name).decode() for name in names if name.endswith("RECORD"))
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist: torch")] == [
        "Requires-Dist: torch>=2.13,<2.15"
    ]
    assert [line.split(",")[0] for line in record.splitlines()] == names
    assert "fsdp_cpp/py.typed" in names and "fsdp_cpp_command/__init__.py" in names


def test_a_source_distribution_has_what_the_build_reads(tmp_path):
    """It needs no torch, and CMake configures it without a library of the system."""
    result = backend("build_sdist", tmp_path, TORCH_DIR="/no/torch")
    assert result.returncode == 0, result.stderr
    (archive,) = tmp_path.glob("fsdp_cpp-*.tar.gz")
    call("tar", "-xzf", archive, "-C", tmp_path)
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert not (source / "tests").exists() and not (source / "docs").exists()
    assert "Dynamic: Requires-Dist\n" in (source / "PKG-INFO").read_text()
    options = [f"-DFSDP_{name}" for name in ("WHEEL=ON", "BUILD_PYTHON=ON", "BUILD_TESTS=OFF", "BUILD_BENCHMARKS=OFF")]
    call("cmake", "-G", "Ninja", "-S", source, "-B", tmp_path / "build", f"-DTORCH_DIR={TORCH}", *options)
    rules = (tmp_path / "build/build.ninja").read_text()
    for name in ("gloo", "nlohmann-json", "xxhash", "cli11", "dygraphs"):
        assert f"{source}/third_party/{name}" in rules, name
    # As many compilers as memory has room for, which pip does not ask about.
    assert "pool = fsdp_compilers" in rules

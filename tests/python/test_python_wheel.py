"""A wheel of the build under test serves an environment without a compiler, and refuses a torch that does not fit."""

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from resume_support import write_model
from wheel_support import TORCH, Environment, make_wheel

SERIES = ".".join(torch.__version__.split(".")[:2])
LIBRARIES = f"fsdp_cpp/lib/torch{SERIES}"
COMPILED = ("libfsdp_cpp.so", "libfsdp.so.0", "fsdp")
VERSION = r"\d+\.\d+\.\d+"


@pytest.fixture(scope="module")
def wheel(source_dir, build_dir, tmp_path_factory):
    return make_wheel(source_dir, build_dir, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def with_torch_elsewhere(wheel, tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("elsewhere") / "venv")
    environment.install(wheel)
    environment.share_packages()
    return environment


@pytest.fixture
def changed(with_torch_elsewhere, tmp_path):
    """The same environment, with a copy of the package to spoil in front of its own."""
    copy = tmp_path / "copy"
    for package in ("fsdp_cpp", "fsdp_cpp_command"):
        shutil.copytree(with_torch_elsewhere.site_packages / package, copy / package)

    class Changed:
        libraries = copy / LIBRARIES

        @staticmethod
        def import_error(**variables):
            return with_torch_elsewhere.import_error(PYTHONPATH=str(copy), **variables)

    return Changed


def test_the_wheel_holds_one_library_for_each_torch_and_no_links(wheel):
    assert re.fullmatch(rf"fsdp_cpp-{VERSION}-py3-none-linux_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if "/lib/" in name}
        assert names == {f"{LIBRARIES}/{name}" for name in (*COMPILED, "libfsdp_cpp.json")}
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
        licences = [name for name in archive.namelist() if "/licenses/" in name]
        assert archive.getinfo(f"{LIBRARIES}/fsdp").external_attr >> 16 & 0o111 == 0o111
    major, minor = SERIES.split(".")
    assert f"Requires-Dist: torch>={major}.{minor},<{major}.{int(minor) + 1}\n" in text
    assert "License-Expression: BSD-3-Clause\n" in text
    for name in ("LICENSE", "gloo/copyright", "nlohmann-json/copyright", "xxhash/copyright", "cli11/copyright"):
        assert any(licence.endswith(name) for licence in licences), name


def test_auditwheel_finds_nothing_that_other_systems_lack(source_dir, build_dir, tmp_path):
    wheel = make_wheel(source_dir, build_dir, tmp_path, "--repair")
    assert re.fullmatch(rf"fsdp_cpp-{VERSION}-py3-none-manylinux_\d+_\d+_x86_64(\..*)?\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        compiled = {name for name in archive.namelist() if re.search(r"\.so(\.|$)|/fsdp$", name)}
        assert compiled == {f"{LIBRARIES}/{name}" for name in COMPILED}, "nothing was grafted"
        assert archive.getinfo(f"{LIBRARIES}/fsdp").external_attr >> 16 & 0o111 == 0o111


def test_installed_files_name_no_folder_of_the_build(with_torch_elsewhere, source_dir, build_dir):
    for name in COMPILED:
        file = with_torch_elsewhere.site_packages / LIBRARIES / name
        dynamic = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
        (run_path,) = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
        assert run_path == "$ORIGIN:$ORIGIN/../../../torch/lib"
        assert str(TORCH) not in dynamic


def test_it_is_imported_without_a_compiler(with_torch_elsewhere):
    code = (
        "import shutil; assert not shutil.which('g++') and not shutil.which('cmake')\n"
        "import fsdp_cpp, torch; print(fsdp_cpp.__version__, torch.classes.fsdp_cpp.Build.torch_version())"
    )
    version, torch_version = with_torch_elsewhere.python_says(code).split()
    assert re.fullmatch(VERSION, version)
    assert TORCH.joinpath("version.py").read_text().find(f"'{torch_version}") > 0


def test_the_command_runs_ranks_with_a_torch_elsewhere(with_torch_elsewhere, tmp_path):
    """Its libraries are found by the ranks, too, which the program starts as processes of its own."""
    config = {
        "model_path": str(write_model(tmp_path / "model")),
        "dataset": "dummy:20",
        "max_seq_length": 9,
        "train_batch_size": 2,
        "max_steps": 2,
        "save_final": True,
        "output_dir": str(tmp_path / "output"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = with_torch_elsewhere.folder / "bin/fsdp"
    words = ("train", "--config-path", tmp_path / "config.json", "--nproc-per-node", 2)
    result = with_torch_elsewhere.run(command, *words, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    assert "step 2/2" in result.stdout
    inspected = with_torch_elsewhere.run(command, "inspect", tmp_path / "output/final")
    assert inspected.returncode == 0, inspected.stderr
    assert "model.embed_tokens.weight" in inspected.stdout


def test_the_command_passes_on_arguments_and_status(with_torch_elsewhere):
    result = with_torch_elsewhere.run(with_torch_elsewhere.folder / "bin/fsdp", "train")
    assert result.returncode == 2
    assert "--config-path is required" in result.stderr


def test_the_program_finds_torch_beside_its_package(wheel, tmp_path):
    environment = Environment(tmp_path / "venv")
    environment.install(wheel)
    program = environment.site_packages / LIBRARIES / "fsdp"
    assert environment.run(program, "--help").returncode == 127, "there is no torch yet"
    environment.link_torch()
    assert "train" in environment.run(program, "--help").stdout
    assert "train" in environment.run(environment.folder / "bin/fsdp", "--help").stdout


def test_without_torch_the_errors_say_so(wheel, tmp_path):
    environment = Environment(tmp_path / "venv")
    environment.install(wheel)
    assert f"needs PyTorch, which {environment.python} does not have" in environment.import_error()
    result = environment.run(environment.folder / "bin/fsdp", "--help")
    assert result.returncode == 1
    assert result.stderr.startswith("fsdp: error: fsdp_cpp needs PyTorch")


def test_a_torch_without_a_library_is_refused(changed):
    changed.libraries.rename(changed.libraries.with_name("torch2.99"))
    error = changed.import_error()
    assert re.search(rf"has libraries for torch 2\.99, but torch {VERSION}\S* is installed \(in {TORCH}\)", error)
    assert "pip install" in error


def test_a_library_of_another_torch_in_the_folder_is_refused(changed):
    write_record(changed.libraries, torch="2.99.0")
    error = changed.import_error()
    assert f"{changed.libraries}/libfsdp_cpp.so was compiled for torch 2.99.0, but torch" in error
    assert "the installation is damaged" in error


def test_a_record_that_is_wrong_about_its_library_is_found_out(changed):
    """The library is asked itself: here the record claims a patch release that the library was not compiled for."""
    write_record(changed.libraries, torch=f"{SERIES}.99")
    assert re.search(
        rf"was compiled for torch {VERSION}, but libfsdp_cpp.json beside it says \d+\.\d+\.99", changed.import_error()
    )


@pytest.mark.parametrize("content", [None, "", "[]", '{"torch": "2.13.0"}'])
def test_a_library_without_a_readable_record_is_refused(changed, content):
    record = changed.libraries / "libfsdp_cpp.json"
    record.unlink() if content is None else record.write_text(content)
    assert re.search(r"cannot tell which torch .*libfsdp_cpp\.so was compiled for", changed.import_error())


def test_a_library_that_cannot_be_loaded_is_named(changed):
    (changed.libraries / "libfsdp.so.0").unlink()
    error = changed.import_error()
    assert f"{changed.libraries}/libfsdp_cpp.so, compiled for torch" in error
    assert "cannot be loaded with torch" in error and "libfsdp.so.0" in error


def test_a_torch_that_was_replaced_in_a_running_process_is_noticed(with_torch_elsewhere):
    code = "import torch; torch.__version__ = '2.12.1'\nimport fsdp_cpp"
    result = with_torch_elsewhere.run(with_torch_elsewhere.python, "-c", code)
    assert "this process has imported torch 2.12.1: start it again" in result.stderr


BROKEN_TORCH = """
import fsdp_cpp
from fsdp_cpp import _library

class Build:
    torch_version = staticmethod(lambda: fsdp_cpp._compiled.torch)

    @staticmethod
    def check():
        raise RuntimeError("views must inherit the key")

_library._confirm(fsdp_cpp._compiled, Build)
"""


def test_a_torch_that_fails_the_self_check_is_refused(with_torch_elsewhere):
    result = with_torch_elsewhere.run(with_torch_elsewhere.python, "-c", BROKEN_TORCH)
    assert result.returncode == 1
    assert "does not work with this torch: views must inherit the key" in result.stderr


def test_a_library_may_be_named(changed, build_dir):
    """The build's own library in place of the package's, which is spoiled; another file is refused."""
    shutil.rmtree(changed.libraries)
    assert "these are its sources" in changed.import_error()
    other = changed.import_error(FSDP_CPP_LIBRARY=str(build_dir / "libfsdp.so"))
    assert "FSDP_CPP_LIBRARY is" in other and "name a compiled one" in other


def test_the_named_library_is_checked_as_well(with_torch_elsewhere, build_dir, tmp_path):
    code = "import fsdp_cpp; print(fsdp_cpp._compiled.path)"
    named = build_dir / "libfsdp_cpp.so"
    assert Path(with_torch_elsewhere.python_says(code, FSDP_CPP_LIBRARY=str(named))) == named
    for name in ("libfsdp_cpp.so", "libfsdp_cpp.json"):
        (tmp_path / name).symlink_to(build_dir / name)
    (tmp_path / "libfsdp_cpp.json").unlink()
    write_record(tmp_path, torch="2.99.0", record=json.loads((build_dir / "libfsdp_cpp.json").read_text()))
    error = with_torch_elsewhere.import_error(FSDP_CPP_LIBRARY=str(tmp_path / "libfsdp_cpp.so"))
    assert "was compiled for torch 2.99.0" in error and "in FSDP_CPP_LIBRARY, or unset it" in error


def write_record(folder, torch, record=None):
    file = folder / "libfsdp_cpp.json"
    file.write_text(json.dumps({**(record or json.loads(file.read_text())), "torch": torch}))

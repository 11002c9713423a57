"""The sources of the package work with the library of the build under test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def test_the_sources_are_imported_with_the_library_of_the_build(build_dir):
    import fsdp_cpp

    assert Path(fsdp_cpp.__path__[0]) == ROOT / "python/fsdp_cpp"
    assert fsdp_cpp._compiled.path == Path(os.environ["FSDP_CPP_LIBRARY"])
    assert torch.classes.fsdp_cpp.Build.torch_version() == torch.__version__.partition("+")[0]
    assert f"project(fsdp VERSION {fsdp_cpp.__version__} " in (ROOT / "CMakeLists.txt").read_text()


def test_the_command_runs_the_program_beside_the_library(fsdp_program):
    code = "import fsdp_cpp_command as command; print(*command.find_program())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    program, libraries = map(Path, result.stdout.split())
    assert program == Path(os.environ["FSDP_CPP_LIBRARY"]).parent / "fsdp"
    assert libraries == Path(torch.__file__).parent / "lib"


def test_the_command_does_not_import_torch():
    """torch takes seconds."""
    code = "import sys, fsdp_cpp_command as command; command.find_program(); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.fixture
def choice(monkeypatch):
    from fsdp_cpp import _choice

    monkeypatch.delenv(_choice.OVERRIDE)
    return _choice


def add_library(choice, package, series):
    """Files that look like a library for this version of torch."""
    library = package / f"lib/torch{series}/{choice.LIBRARY}"
    library.parent.mkdir(parents=True)
    library.touch()
    library.with_name(choice.RECORD).write_text(json.dumps({"version": "0.1.0", "torch": f"{series}.0", "nccl": False}))
    return library


@pytest.mark.parametrize("version", ["2.13.0", "2.13.4+cu130", "2.14.0a0+git12", "2.9.1"])
def test_the_library_of_the_minor_version_is_chosen(choice, tmp_path, version):
    libraries = {series: add_library(choice, tmp_path, series) for series in ("2.9", "2.13", "2.14")}
    chosen = choice.choose(choice.InstalledTorch(tmp_path, version), [tmp_path])
    assert chosen.path == libraries[choice.series_of(version)]
    assert version.startswith(chosen.series)


def test_versions_are_named_in_their_order(choice, tmp_path):
    for series in ("2.13", "2.9", "2.14"):
        add_library(choice, tmp_path, series)
    with pytest.raises(
        ImportError, match=r"has libraries for torch 2\.9, 2\.13, 2\.14, but torch 2\.15\.0 is installed"
    ):
        choice.choose(choice.InstalledTorch(tmp_path, "2.15.0"), [tmp_path])


@pytest.mark.parametrize("editable", [True, False])
def test_an_editable_installation_finds_its_library(choice, tmp_path, monkeypatch, editable):
    """Its Python files are the sources, and what was compiled is in site-packages. The library of another installation
    is not taken for that of the sources."""
    sources = tmp_path / "a clone/python/fsdp_cpp"
    sources.mkdir(parents=True)
    library = add_library(choice, tmp_path / "site-packages/fsdp_cpp", "2.13")
    installed = tmp_path / "site-packages/fsdp_cpp-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: fsdp-cpp\nVersion: 0.1.0\n")
    origin = {"url": (tmp_path / "a clone").as_uri(), "dir_info": {"editable": True} if editable else {}}
    (installed / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(installed.parent))
    torch_2_13 = choice.InstalledTorch(tmp_path, "2.13.0")
    if editable:
        assert choice.choose(torch_2_13, [sources]).path == library
    else:
        with pytest.raises(ImportError, match="these are its sources"):
            choice.choose(torch_2_13, [sources])

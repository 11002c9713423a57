"""What the Python tests share: where the build is, and repeatable arithmetic."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: no threads of OpenMP's in forked tests

import pytest

SOURCE_DIR = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE_DIR / "tests/python/support"))  # what tests import by its name
os.environ.setdefault("FSDP_BUILD_DIR", str(SOURCE_DIR / "build"))
# The Python package: its sources, with the library of the build, here and in processes that tests start.
PACKAGE = str(SOURCE_DIR / "python")
sys.path.insert(0, PACKAGE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
os.environ.setdefault("FSDP_CPP_LIBRARY", os.path.join(os.environ["FSDP_BUILD_DIR"], "libfsdp_cpp.so"))


@pytest.fixture(scope="session")
def source_dir():
    return SOURCE_DIR


@pytest.fixture(scope="session")
def build_dir():
    """The build under test: FSDP_BUILD_DIR, or build/."""
    folder = Path(os.environ["FSDP_BUILD_DIR"]).resolve()
    assert (folder / "CMakeCache.txt").exists(), f"{folder} holds no build: run make build-all"
    return folder


@pytest.fixture(scope="session")
def fsdp_program(build_dir):
    program = build_dir / "fsdp"
    assert program.exists(), f"{program} is missing: run make build"
    return program


def inductor_folders():
    return set(Path(tempfile.gettempdir()).glob("torchinductor_*"))


INDUCTOR_FOLDERS_BEFORE = inductor_folders()  # the import of tests already makes one


@pytest.fixture(scope="session", autouse=True)
def compiled_code(tmp_path_factory):
    """Keeps what PyTorch's compiler makes out of the system's temporary folder; its precompiled headers, which go there
    in any case, are removed."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    yield
    for folder in inductor_folders() - INDUCTOR_FOLDERS_BEFORE:
        shutil.rmtree(folder)


@pytest.fixture(params=["shm", "gloo"])
def communicator(request, monkeypatch):
    """The test runs over each of what ranks of one host, as processes of their own, can communicate through:
    fsdp_train() asks for it."""
    monkeypatch.setenv("FSDP_TEST_COMMUNICATOR", request.param)


def pytest_collection_modifyitems(items):
    """Runs what forks first, before other tests start threads: a fork in a process with threads can deadlock."""
    items.sort(key=lambda item: "test_adversarial" not in item.nodeid)

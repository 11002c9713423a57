"""Chooses the compiled library that fits the torch that is installed, and checks it before it is loaded.

The loader would take any: a library compiled for another minor version of torch loads, and misbehaves later. Uses the
standard library alone and imports nothing of the package, so that the command `fsdp` can use it without torch.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import urllib.parse
from pathlib import Path

LIBRARY = "libfsdp_cpp.so"
RECORD = "libfsdp_cpp.json"
OVERRIDE = "FSDP_CPP_LIBRARY"


@dataclasses.dataclass(frozen=True)
class InstalledTorch:
    """A torch that this Python would import."""

    folder: Path
    version: str  # with a local part: "2.13.0+cpu"

    @property
    def series(self):
        return series_of(self.version)


@dataclasses.dataclass(frozen=True)
class CompiledLibrary:
    """A library, as the record beside it describes it."""

    path: Path
    version: str  # of fsdp-cpp
    torch: str  # that it was compiled for: "2.13.0"
    nccl: bool  # whether it was built with NCCL

    @property
    def series(self):
        return series_of(self.torch)

    @property
    def program(self):
        return self.path.parent / "fsdp"


def series_of(version):
    """Major and minor version: "2.13" of "2.13.0+cpu"."""
    match = re.match(r"\d+\.\d+", version)
    if not match:
        raise ImportError(f"fsdp_cpp cannot tell which torch {version!r} is: it begins with no version such as 2.13")
    return match[0]


def installed_torch():
    """The torch of this Python, found without importing it. Raises ImportError if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError(
            f"fsdp_cpp needs PyTorch, which {sys.executable} does not have: install the package torch beside it "
            f"(pip install fsdp-cpp brings a version that fits)"
        )
    file = Path(spec.origin).parent / "version.py"
    text = file.read_text() if file.exists() else ""
    match = re.search(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)", text, flags=re.M)
    if not match:
        raise ImportError(f"fsdp_cpp cannot tell the version of torch: no file {file} says it")
    return InstalledTorch(file.parent, match[1])


def choose(torch, package_folders):
    """The library for `torch`: the one that FSDP_CPP_LIBRARY names, else the one in lib/ of the package's folders that
    was compiled for torch's minor version. Raises ImportError, which says what there is and what to do."""
    if override := os.environ.get(OVERRIDE):
        return check(
            read_record(named_library(override)), torch, f"name one for torch {torch.series} in {OVERRIDE}, or unset it"
        )
    folders = library_folders([*package_folders, *folders_of_editable_installation(package_folders)])
    if not folders:
        raise ImportError(
            f"fsdp_cpp in {package_folders[0]} has no compiled library: these are its sources. Run make python, or "
            f"name a library that is compiled already in the environment variable {OVERRIDE} (build/{LIBRARY})"
        )
    if torch.series not in folders:
        raise ImportError(
            f"fsdp_cpp has libraries for torch {', '.join(sorted(folders, key=number_of))}, but torch {torch.version} "
            f"is installed (in {torch.folder}). Install one of these, or compile fsdp-cpp for this torch: "
            f"pip install . in a clone of its sources"
        )
    library = read_record(folders[torch.series] / LIBRARY)
    return check(
        library, torch, f"its folder says torch {torch.series}, so the installation is damaged: install fsdp-cpp anew"
    )


def library_folders(package_folders):
    """{"2.13": folder} for the libraries in lib/ of these folders; the first one of a version counts."""
    found = {}
    for package in package_folders:
        for folder in sorted((Path(package) / "lib").glob("torch*")):
            found.setdefault(folder.name.removeprefix("torch"), folder)
    return found


def folders_of_editable_installation(package_folders):
    """Where `pip install -e` of the sources in one of these folders has put what it compiled; not where any other
    installation lies, whose library may be older than the sources."""
    try:
        installed = importlib.metadata.distribution("fsdp-cpp")
    except importlib.metadata.PackageNotFoundError:
        return
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        sources = Path(urllib.parse.unquote(urllib.parse.urlparse(origin["url"]).path)) / "python/fsdp_cpp"
        if sources.resolve() in (Path(folder).resolve() for folder in package_folders):
            yield Path(installed.locate_file("fsdp_cpp"))


def number_of(series):
    return tuple(map(int, re.findall(r"\d+", series)))


def named_library(path):
    library = Path(path).absolute()
    if library.name != LIBRARY or not library.exists():
        raise ImportError(
            f"{OVERRIDE} is {path!r}, which is no file called {LIBRARY}: name a compiled one, or unset it"
        )
    return library


def read_record(path):
    """What the record beside a library says about it."""
    record = path.with_name(RECORD)
    try:
        content = json.loads(record.read_text())
        library = CompiledLibrary(path, version=content["version"], torch=content["torch"], nccl=content["nccl"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(
            f"fsdp_cpp cannot tell which torch {path} was compiled for, as {record} cannot be read ({error!r}): "
            f"install fsdp-cpp anew, or build it again"
        ) from error
    if not path.exists():
        raise ImportError(f"fsdp_cpp has a record of its library, but no file {path}: install fsdp-cpp anew")
    return library


def check(library, torch, advice):
    if library.series != torch.series:
        raise ImportError(
            f"{library.path} was compiled for torch {library.torch}, but torch {torch.version} is installed (in "
            f"{torch.folder}); {advice}"
        )
    return library

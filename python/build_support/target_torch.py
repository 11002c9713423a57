"""Finds the torch that the package is built for, and says which torch the package therefore needs.

The build backend calls TorchRequirement; CMake runs this file, which prints torch's folder. torch is never imported:
in an isolated build it cannot be, and elsewhere it takes seconds.
"""

import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path

OLDEST = (2, 13)

HOW_TO = (
    "The package is compiled for one torch, which must be there before:\n"
    "    pip install 'torch>={oldest}'\n"
    "    pip install .\n"
    "A torch that lies elsewhere is named by TORCH_DIR, the folder that holds its include/ and lib/."
)


def places():
    """The folders in which torch may lie. An isolated build of pip hides the packages of the environment that it
    installs into, but runs that environment's Python, which knows where they are."""
    if os.environ.get("TORCH_DIR"):
        yield Path(os.environ["TORCH_DIR"])
        return
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder)
    for scheme in dict.fromkeys((sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))):
        for name in ("purelib", "platlib"):
            yield Path(sysconfig.get_path(name, scheme)) / "torch"


def find_torch():
    """torch's folder, or the end of the build with an error that says what to do."""
    looked_in = list(dict.fromkeys(places()))
    for folder in looked_in:
        if (folder / "include/ATen/ATen.h").exists():
            check(folder)
            return folder
    names = ", ".join(map(str, looked_in))
    sys.exit(f"error: fsdp-cpp: no torch was found (looked for: {names}).\n{how_to()}")


def check(folder):
    version = version_of(folder)
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        sys.exit(f"error: fsdp-cpp: torch {version} in {folder} is too old.\n{how_to()}")


def how_to():
    return HOW_TO.format(oldest=".".join(map(str, OLDEST)))


def version_of(folder):
    """Of the headers, which are what is compiled: "2.13.0"."""
    header = (folder / "include/torch/headeronly/version.h").read_text()
    parts = dict(re.findall(r"#define TORCH_VERSION_(MAJOR|MINOR|PATCH) (\d+)", header))
    return f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}"


def requirement(versions):
    """What pip is asked for by a package with libraries for these versions: "torch>=2.13,<2.15"."""
    series = sorted(tuple(map(int, version.split(".")[:2])) for version in versions)
    (oldest, _), (newest, newest_minor) = series[0], series[-1]
    for before, after in zip(series, series[1:]):
        if after not in (before, (before[0], before[1] + 1)):
            sys.exit(f"error: fsdp-cpp: a wheel for torch {before} and {after} would lack the versions between them")
    return f"torch>={oldest}.{series[0][1]},<{newest}.{newest_minor + 1}"


class TorchRequirement:
    """The provider of project.dependencies in pyproject.toml."""

    def __init__(self):
        self.state = "wheel"

    def build_state(self, state):
        self.state = state

    def dynamic_wheel(self, settings):
        return {"dependencies": True}

    def dynamic_metadata(self, settings, project):
        """A source distribution serves every torch, so it names none."""
        return {} if self.state == "sdist" else {"dependencies": [requirement([version_of(find_torch())])]}


if __name__ == "__main__":
    print(find_torch())

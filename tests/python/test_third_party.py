"""third_party/ has every header of its libraries that the project includes, and unchanged."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "gloo": Path("/usr/include"),
    "nlohmann-json": Path("/usr/include"),
    "xxhash": Path("/usr/include"),
    "cli11": Path("/usr/include"),
    "dygraphs": Path("/usr/share/javascript/dygraphs"),
}
VERSIONS = dict(
    line.split(maxsplit=1)
    for line in (ROOT / "third_party/versions.txt").read_text().splitlines()
    if not line.startswith("#")
)
OF_LIBRARIES = re.compile(
    r"#include [<\"]((?:gloo|nlohmann|CLI)/[\w/.]+|xxhash\.h|torch/csrc/distributed/c10d/ProcessGroupGloo\.hpp)[>\"]"
)


def includes_of_the_project():
    found = set()
    for folder in ("src", "trainer", "python"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".h", ".cpp"):
                found.update(OF_LIBRARIES.findall(path.read_text()))
    return sorted(found)


def test_every_header_of_the_libraries_is_there(tmp_path):
    """None is read from the system's folders."""
    includes = includes_of_the_project()
    assert {"xxhash.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "gloo/transport/tcp/device.h"} <= set(includes)
    (tmp_path / "all.cpp").write_text("".join(f"#include <{name}>\n" for name in includes))
    torch_include = Path(torch.__file__).parent / "include"
    folders = [
        *(ROOT / "third_party" / name for name in FOLDERS),
        torch_include,
        torch_include / "torch/csrc/api/include",
    ]
    options = [word for folder in folders for word in ("-I", folder)]
    command = ["g++", "-std=c++20", "-DUSE_C10D_GLOO", "-M", *options, tmp_path / "all.cpp"]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [path for path in read if re.match(r"/usr/(local/)?include/(gloo|nlohmann|CLI|xxh)", path)] == []
    assert sum("/third_party/" in path for path in read) > 50


@pytest.mark.parametrize("name", FOLDERS)
def test_files_are_those_of_the_packages(name):
    package, version = VERSIONS[name].split()
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=False
    ).stdout
    files = [path for path in (ROOT / "third_party" / name).rglob("*") if path.is_file()]
    assert ROOT / f"third_party/{name}/copyright" in files
    if listed != version:
        pytest.skip(f"{package} {version} is not installed")
    for path in files:
        if path.name == "copyright":
            original = Path(f"/usr/share/doc/{package}/copyright")
        else:
            original = FOLDERS[name] / path.relative_to(ROOT / "third_party" / name)
        assert path.read_bytes() == original.read_bytes(), path

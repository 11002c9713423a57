#!/usr/bin/env bash
# nccl_headers.sh [FOLDER]: the headers that building with NCCL needs (7 MB), into FOLDER (VENV/nccl-headers), once for
# each content of requirements-nccl.txt. They are taken out of Python packages, of which one is 300 MB; nothing of
# these is kept. Needs no GPU.
source "$(dirname "$0")/common.sh"

folder=${1:-$VENV/nccl-headers}
requirements=$ROOT/scripts/requirements-nccl.txt
content=$(sha256sum <"$requirements")
[[ -f $folder/.made-from && $(<"$folder/.made-from") == "$content" ]] && exit 0

say "Fetching the headers of NCCL (300 MB, of which 7 MB are kept)"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$PYTHON" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
  --dest "$wheels" -r "$requirements" ||
  die "pip could not fetch the packages of $requirements" "Its output is above." \
    "To use headers that are already installed, set the CMake variables NCCL_INCLUDE_DIR and CUDA_INCLUDE_DIR."
rm -rf "$folder"
"$PYTHON" - "$wheels" "$folder" <<'END'
import pathlib, sys, zipfile

wheels, folder = map(pathlib.Path, sys.argv[1:])
for wheel in wheels.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = name.partition("/include/")[2]
            # CUDA's C++ libraries are large, and of them only nv/target is included, which also lies beside them.
            if not path or path.endswith("/") or path.startswith("cccl/"):
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
END
printf '%s\n' "$content" >"$folder/.made-from"

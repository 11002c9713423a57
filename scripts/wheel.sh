#!/usr/bin/env bash
# wheel.sh [TORCH...]: compiles the Python package for each of these versions of torch, in build-wheel/torchX.Y, and makes
# one wheel with all of them in dist/. A TORCH is a folder that holds include/ and lib/, or a version such as 2.14.1, of
# which pip fetches the package (0.2 to 0.6 GB; headers and libraries are kept in build-wheel/). Without any: the torch of
# the environment.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
PLACE=$ROOT/build-wheel
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT

# fetch_torch VERSION: what is compiled against, in PLACE/fetched-VERSION/torch.
fetch_torch() {
  local folder=$PLACE/fetched-$1
  [[ ! -e $folder/torch/version.py ]] || return 0
  say "Fetching torch $1"
  "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
    --dest "$packages" "torch==$1" || die "pip could not fetch torch $1 (its output is above)"
  "$PYTHON" - "$packages" "$folder" <<'END'
import pathlib, re, sys, zipfile

packages, folder = map(pathlib.Path, sys.argv[1:])
(package,) = packages.glob("*.whl")
with zipfile.ZipFile(package) as archive:
    names = [name for name in archive.namelist() if re.match(r"torch/(include/|lib/lib(torch_cpu|torch|c10)\.so)", name)]
    archive.extractall(folder, [*names, "torch/version.py"])
package.unlink()
END
}

# series_of FOLDER: the major and minor version of a torch.
series_of() {
  "$PYTHON" -c 'import sys, pathlib; sys.path.insert(0, "python/build_support"); import target_torch
print(*target_torch.version_of(pathlib.Path(sys.argv[1])).split(".")[:2], sep=".")' "$1"
}

"$ROOT/scripts/nccl_headers.sh" || echo "      continuing without NCCL: the wheel has no communicator for NVIDIA GPUs"
(($#)) || set -- "$(torch_dir)"
options=()
for torch; do
  if [[ $torch =~ ^[0-9]+(\.[0-9]+)+$ ]]; then
    fetch_torch "$torch"
    torch=$PLACE/fetched-$torch/torch
  fi
  torch=$(TORCH_DIR=$torch torch_dir)
  series=$(series_of "$torch")
  say "torch $series in $torch"
  TORCH_DIR=$torch BUILD_DIR=$PLACE/torch$series BUILD_TESTS=OFF BUILD_TARGETS="fsdp_python fsdp_program" \
    scripts/build.sh -DFSDP_WHEEL=ON -DFSDP_BUILD_PYTHON=ON
  options+=(--build-dir "$PLACE/torch$series")
done
"$PYTHON" scripts/make_wheel.py --repair "${options[@]}"

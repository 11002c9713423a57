#!/usr/bin/env bash
# python.sh: compiles the Python package in BUILD_DIR, installs it into the environment VENV, and trains the first example there.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT

compile() {
  BUILD_TESTS=OFF BUILD_TARGETS="fsdp_python fsdp_program" scripts/build.sh -DFSDP_BUILD_PYTHON=ON
}

install() {
  "$PYTHON" scripts/make_wheel.py --build-dir "$BUILD_DIR" --output "$packed" >/dev/null
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall "$packed"/*.whl
}

# From another folder, so that the installed package is found and not the sources.
use() {
  (cd / && "$PYTHON" -c '
import fsdp_cpp, torch
print("      fsdp_cpp", fsdp_cpp.__version__, "with torch", torch.__version__, "in", fsdp_cpp.__path__[0])')
  "$VENV/bin/fsdp" --help >/dev/null
  (cd / && OMP_NUM_THREADS=1 "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 2 \
    "$ROOT/examples/python/first.py")
}

run_steps "Building the library and the program" compile "Installing the package into $VENV" install "Training the first example over two ranks" use

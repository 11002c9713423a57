#!/usr/bin/env bash
# test.sh: installs what is missing, builds everything, and runs every test.
source "$(dirname "$0")/common.sh"
cd "$ROOT"

packages() { scripts/setup.sh packages test; }
python_packages() { scripts/setup.sh python test; }
build() { scripts/build.sh; }
build_fuzzers() { scripts/fuzz.sh build; }
run_tests() {
  "$PYTHON" scripts/run_tests.py --build-dir "$BUILD_DIR" --fuzz-dir "${FUZZ_DIR:-$ROOT/build-fuzz}" --pytest tests/python
}

run_steps "Packages of the system" packages \
  "Packages for Python" python_packages \
  "Building the library, the program and the tests" build \
  "Building the fuzz targets" build_fuzzers \
  "Running the tests" run_tests

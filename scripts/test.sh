#!/usr/bin/env bash
# test.sh: installs what is missing, builds everything, and runs every test.
source "$(dirname "$0")/common.sh"
cd "$ROOT"

run_tests() {
  "$PYTHON" scripts/run_tests.py --build-dir "$BUILD_DIR" --fuzz-dir "${FUZZ_DIR:-$ROOT/build-fuzz}" --pytest tests/python
}

run_steps "System packages" "scripts/setup.sh packages test" \
  "Python packages" "scripts/setup.sh python test" \
  "Building the library, the program and the tests" scripts/build.sh \
  "Building the fuzz targets" "scripts/fuzz.sh build" \
  "Running the tests" run_tests

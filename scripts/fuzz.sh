#!/usr/bin/env bash
# fuzz.sh [build]: builds the fuzz targets with clang into FUZZ_DIR (build-fuzz) and, unless told only to build, runs each for
# FUZZ_SECONDS (600) or over FUZZ_RUNS inputs. FUZZ_ONLY: a regular expression for names of targets.
source "$(dirname "$0")/common.sh"
export BUILD_DIR=${FUZZ_DIR:-$ROOT/build-fuzz} SOURCE_DIR=$ROOT/fuzz

if ! command -v clang++ >/dev/null; then
  [[ ${1:-} == build ]] || die "clang++ is missing" "make setup installs it: packages clang and libclang-rt-dev."
  say "Going on without the fuzz targets: clang++ is missing"
  exit 0
fi
"$ROOT/scripts/build.sh" -DCMAKE_CXX_COMPILER=clang++
rm -rf "$BUILD_DIR/seeds"
"$BUILD_DIR/make_seeds" "$BUILD_DIR/seeds"
[[ ${1:-} == build ]] && exit 0
exec python3 "$ROOT/scripts/run_fuzzers.py" --build-dir "$BUILD_DIR" --seconds "${FUZZ_SECONDS:-600}" \
  --runs "${FUZZ_RUNS:-0}" --only "${FUZZ_ONLY:-}" --jobs "${JOBS:-$(default_jobs)}" --keep

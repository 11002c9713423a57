#!/usr/bin/env bash
# fuzz.sh [build]: builds the fuzz targets with clang into FUZZ_DIR (build-fuzz) and, unless told only to build, runs each for
# FUZZ_SECONDS (600) or over FUZZ_RUNS inputs. FUZZ_ONLY: a regular expression for names of targets.
source "$(dirname "$0")/common.sh"
export BUILD_DIR=${FUZZ_DIR:-$ROOT/build-fuzz} SOURCE_DIR=$ROOT/fuzz

# Distributions have libFuzzer and the sanitizers in a package of their own.
has_fuzzer() {
  local program status=0
  program=$(mktemp)
  clang++ -fsanitize=address,fuzzer -x c++ -o "$program" - 2>/dev/null <<'END' || status=1
extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }
END
  rm "$program"
  return $status
}

if ! has_fuzzer; then
  missing="clang++ with libFuzzer and AddressSanitizer is missing"
  [[ ${1:-} == build ]] || die "$missing" "make setup installs it: packages clang and libclang-rt-dev."
  say "Continuing without the fuzz targets: $missing"
  exit 0
fi
CXX=clang++ "$ROOT/scripts/build.sh"
rm -rf "$BUILD_DIR/seeds"
"$BUILD_DIR/make_seeds" "$BUILD_DIR/seeds"
[[ ${1:-} == build ]] && exit 0
exec python3 "$ROOT/scripts/run_fuzzers.py" --build-dir "$BUILD_DIR" --seconds "${FUZZ_SECONDS:-600}" \
  --runs "${FUZZ_RUNS:-0}" --only "${FUZZ_ONLY:-}" --jobs "${JOBS:-$(default_jobs)}" --keep

#!/usr/bin/env bash
# sanitize.sh: builds with AddressSanitizer and UndefinedBehaviorSanitizer and runs the C++ tests.
source "$(dirname "$0")/common.sh"
export BUILD_DIR=${SANITIZE_DIR:-$ROOT/build-sanitize}
"$ROOT/scripts/build.sh" -DFSDP_SANITIZE=address,undefined -DFSDP_BUILD_BENCHMARKS=OFF
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$ROOT/scripts/lsan.supp:print_suppressions=0}
python3 "$ROOT/scripts/run_tests.py" --build-dir "$BUILD_DIR" --timeout 1800

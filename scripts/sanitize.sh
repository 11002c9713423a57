#!/usr/bin/env bash
# sanitize.sh [address|thread]: builds with AddressSanitizer and UndefinedBehaviorSanitizer and runs the C++ tests (the
# default), or builds with ThreadSanitizer and runs those of the communicators, of which ranks are threads.
source "$(dirname "$0")/common.sh"

address() {
  export BUILD_DIR=${SANITIZE_DIR:-$ROOT/build-sanitize}
  "$ROOT/scripts/build.sh" -DFSDP_SANITIZE=address,undefined -DFSDP_BUILD_BENCHMARKS=OFF -DFSDP_BUILD_PYTHON=OFF
  # Tests ask for more memory than there is, and expect to be told; others are to end by a signal.
  local options=detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1
  export ASAN_OPTIONS=${ASAN_OPTIONS:-$options:allocator_may_return_null=1:handle_segv=0}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
  export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$ROOT/scripts/lsan.supp:print_suppressions=0}
  python3 "$ROOT/scripts/run_tests.py" --build-dir "$BUILD_DIR" --timeout 1800
}

# LibTorch is not instrumented: its locks are seen, its reads, writes and atomics are not (comm/shm/race_notes.h tells of
# those that matter). Tests that end by a signal are to end by it.
thread() {
  export BUILD_DIR=${SANITIZE_DIR:-$ROOT/build-tsan}
  export CXX=${CXX:-g++}  # the suppressions were made with its runtime
  BUILD_TARGETS=comm_test "$ROOT/scripts/build.sh" -DFSDP_SANITIZE=thread -DFSDP_BUILD_BENCHMARKS=OFF
  export TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1:second_deadlock_stack=1:handle_segv=0}
  # Its shadow memory has fixed addresses, where a randomised layout may have put something else.
  setarch -R python3 "$ROOT/scripts/run_tests.py" --build-dir "$BUILD_DIR" --timeout 1800 --only '^comm_test'
}

case ${1:-address} in
  address | thread) "${1:-address}" ;;
  *) die "sanitize.sh: unknown sanitizer '$1'" "Accepted: address, thread" ;;
esac

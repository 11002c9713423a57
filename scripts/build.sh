#!/usr/bin/env bash
# build.sh [CMake option...]: configures BUILD_DIR where settings changed, and builds it. SOURCE_DIR: another project than
# the repository's own. BUILD_TARGETS: some targets only. BUILD_TESTS=OFF: a folder that was not configured with tests yet
# gets none, so that what only they need may be missing. CXX: the compiler of a folder that is configured for the first time.
source "$(dirname "$0")/common.sh"

# ccache must look past time stamps to use what it has with precompiled headers. It takes the list of headers from the
# compiler (CCACHE_DEPEND): preprocessing a file, precompiled headers included, costs a quarter of compiling it.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1

torch=$(torch_dir)
settings=(-DCMAKE_BUILD_TYPE="${BUILD_TYPE:-RelWithDebInfo}" -DTORCH_DIR="$torch")
if [[ -z ${SOURCE_DIR:-} ]]; then
  tests=${BUILD_TESTS:-ON}
  if grep -qs '^FSDP_BUILD_TESTS:BOOL=ON' "$BUILD_DIR/CMakeCache.txt"; then tests=ON; fi
  settings+=(-DFSDP_BUILD_TESTS="$tests" -DFSDP_BUILD_BENCHMARKS="$tests")
fi

# Whether this clang++ can compile the project, which needs the headers of C++20.
has_clang() { printf '#include <concepts>\n' | clang++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }

# A folder keeps its compiler. A new one gets clang where it is installed: its precompiled headers hold the instances of
# templates that GCC makes anew in each file, which halves the time.
choose_compiler() {
  local kept
  kept=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$BUILD_DIR/CMakeCache.txt" 2>/dev/null || true)
  if [[ -z $kept ]]; then
    if [[ -z ${CXX:-} && -z ${SOURCE_DIR:-} ]] && has_clang; then export CXX=clang++; fi
  elif [[ -n ${CXX:-} && ! $(command -v "$CXX") -ef $(command -v "$kept") ]]; then
    die "$BUILD_DIR is configured with $kept, not with CXX=$CXX" "For another compiler: make clean, or another BUILD_DIR"
  fi
}

choose_compiler
settings+=("$@")
stamp=$BUILD_DIR/.configured-with
# Headers of NCCL that came or went since are a change of settings, too.
configuration="${settings[*]} $(cat "$VENV/nccl-headers/.made-from" 2>/dev/null || true)"

configure() {
  echo "      configuring $BUILD_DIR with LibTorch in $torch"
  cmake --log-level=WARNING -G Ninja -S "${SOURCE_DIR:-$ROOT}" -B "$BUILD_DIR" -U 'LibTorch_*' "${settings[@]}" ||
    die "CMake could not configure the build" "The missing package is named above; make setup installs it." \
      "Another LibTorch: make build TORCH_DIR=…   Old settings: make clean"
  printf '%s\n' "$configuration" >"$stamp"
}

if [[ ! -f $BUILD_DIR/build.ninja || ! -f $stamp || $(<"$stamp") != "$configuration" ]]; then configure; fi
export NINJA_STATUS='      [%f of %t, %e s] '
cmake --build "$BUILD_DIR" --parallel "${JOBS:-$(default_jobs)}" --target ${BUILD_TARGETS:-all} ||
  die "the build failed: the first error above is the one to look at" \
    "Compiler killed, or no memory: make build JOBS=1   After changes to the system: make clean build"

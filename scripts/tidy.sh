#!/usr/bin/env bash
# tidy.sh [REGEX]: clang-tidy (.clang-tidy) over the library and the program, or over those of their batches whose paths
# match REGEX, with the compile commands of BUILD_DIR. A unity batch is checked as one file.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
[[ -x $VENV/bin/clang-tidy ]] || die "clang-tidy is missing" "make setup installs it."
[[ -f $BUILD_DIR/compile_commands.json ]] || die "$BUILD_DIR is not configured" "make build configures it."

# The batches of src/ and trainer/, without those of tests, examples and benchmarks and of precompiled headers.
mapfile -t files < <(grep -oE '"file": "[^"]+"' "$BUILD_DIR/compile_commands.json" | cut -d '"' -f 4 |
  grep -E "^$BUILD_DIR/(trainer/)?CMakeFiles/fsdp_[a-z_]+[.]dir/Unity/" | grep -v _pch.dir/ | grep -E "${1:-}")
((${#files[@]})) || die "$BUILD_DIR has no unity batches" "make clean build makes them."

# clang-tidy reads no precompiled header of another version's: it gets the headers themselves.
commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
sed -E 's/-Xclang -include-pch -Xclang [^ ]+\.pch//g; s/-Winvalid-pch//g; s/-fpch-[a-z-]+//g' \
  "$BUILD_DIR/compile_commands.json" >"$commands/compile_commands.json"

say "clang-tidy over ${#files[@]} batches"
printf '%s\n' "${files[@]}" |
  xargs -P "${JOBS:-$(default_jobs)}" -n 1 "$VENV/bin/clang-tidy" --quiet -p "$commands" ||
  die "clang-tidy found slips; the lines above name them"
say "clang-tidy found nothing"

#!/usr/bin/env bash
# format.sh [--check]: clang-format over the C++ files that git knows.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
command -v clang-format >/dev/null || die "clang-format is missing" "make setup installs it."
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp')
if [[ ${1:-} == --check ]]; then
  clang-format --dry-run -Werror "${files[@]}" || die "some files are not formatted" "make format does it."
  say "${#files[@]} files are formatted"
else
  clang-format -i "${files[@]}"
fi

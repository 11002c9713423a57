#!/usr/bin/env bash
# format.sh [--check]: clang-format over the C++ files that git knows. With --check also looks for misspelled words in all
# texts (.codespellrc) and for slips in Markdown (.pymarkdown; pages that programs write are left out).
source "$(dirname "$0")/common.sh"
cd "$ROOT"
command -v clang-format >/dev/null || die "clang-format is missing" "make setup installs it."
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp')
if [[ ${1:-} == --check ]]; then
  clang-format --dry-run -Werror "${files[@]}" || die "some files are not formatted" "make format formats them."
  say "${#files[@]} files are formatted"
  [[ -x $VENV/bin/codespell ]] || die "codespell and pymarkdown are missing" "make setup installs them."
  git ls-files -z | xargs -0 "$VENV/bin/codespell" || die "some words are misspelled" ".codespellrc lists words to accept."
  git ls-files -z '*.md' ':!docs/benchmarks/experiment-*' | xargs -0 "$VENV/bin/pymarkdown" scan ||
    die "some Markdown pages break the rules of pymarkdown; the lines above name them"
  say "no word is misspelled, and all Markdown pages follow the rules"
else
  clang-format -i "${files[@]}"
fi

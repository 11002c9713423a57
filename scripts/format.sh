#!/usr/bin/env bash
# format.sh [--check]: clang-format over the C++ files and ruff over the Python files that git knows, in the versions of
# requirements-test.txt; third_party/ is left as it is. With --check also looks for slips that ruff knows (ruff.toml), for
# misspelled words in all texts (.codespellrc) and for slips in Markdown (.pymarkdown; pages that programs write are left
# out).
source "$(dirname "$0")/common.sh"
cd "$ROOT"
for tool in clang-format ruff codespell pymarkdown; do
  [[ -x $VENV/bin/$tool ]] || die "$tool is missing" "make setup installs it."
done
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' ':!third_party')

check() {
  "$VENV/bin/clang-format" --dry-run -Werror "${files[@]}" ||
    die "some C++ files are not formatted" "make format formats them."
  "$VENV/bin/ruff" format --quiet --check . || die "some Python files are not formatted" "make format formats them."
  say "${#files[@]} C++ files and all Python files are formatted"
  "$VENV/bin/ruff" check --quiet . || die "ruff found slips in Python files; the lines above name them"
  git ls-files -z ':!third_party' | xargs -0 "$VENV/bin/codespell" || die "some words are misspelled" ".codespellrc lists words to accept."
  git ls-files -z '*.md' ':!docs/benchmarks/experiment-*' | xargs -0 "$VENV/bin/pymarkdown" scan ||
    die "some Markdown pages break the rules of pymarkdown; the lines above name them"
  say "ruff, codespell and pymarkdown found nothing"
}

if [[ ${1:-} == --check ]]; then
  check
else
  "$VENV/bin/clang-format" -i "${files[@]}"
  "$VENV/bin/ruff" format --quiet .
  "$VENV/bin/ruff" check --quiet --fix --exit-zero . >/dev/null
fi

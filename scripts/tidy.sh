#!/usr/bin/env bash
# tidy.sh: clang-tidy (.clang-tidy) over the library and the program, with the compile commands of BUILD_DIR. A unity
# batch is checked as one file.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
for tool in clang-tidy clang-format; do
  [[ -x $VENV/bin/$tool ]] || die "$tool is missing" "make setup installs it."
done
[[ -f $BUILD_DIR/compile_commands.json ]] || die "$BUILD_DIR is not configured" "make build configures it."

# Batches of src/ and trainer/, without their tests.
batches() {
  "$VENV/bin/python" - "$BUILD_DIR/compile_commands.json" <<'PYTHON'
import json, re, sys
for entry in json.load(open(sys.argv[1])):
    if re.search(r"CMakeFiles/fsdp_(?!.*(pch|test|binding|counted))\w+\.dir/Unity/", entry["file"]):
        print(entry["file"])
PYTHON
}

mapfile -t files < <(batches)
((${#files[@]})) || die "$BUILD_DIR has no unity batches" "make clean build makes them."
say "clang-tidy over ${#files[@]} batches"
printf '%s\n' "${files[@]}" |
  xargs -P "${JOBS:-$(default_jobs)}" -n 1 "$VENV/bin/clang-tidy" --quiet -p "$BUILD_DIR" 2>/dev/null ||
  die "clang-tidy found slips; the lines above name them"
say "clang-tidy found nothing"

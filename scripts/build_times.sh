#!/usr/bin/env bash
# build_times.sh [PART...]: how long those wait who build from nothing, in a clone of HEAD without virtual environment and
# build folder, and with ccache switched off. Prints a table. Parts, each of which needs those before it (all by default):
#   train   make train: until the program is built, until the first loss, until the end; and again
#   test    make test
#   touch   after a change of one file of the engine: until its tests have run
# FOLDER: where the clone goes (a temporary folder, removed afterwards).
source "$(dirname "$0")/common.sh"

parts=("$@")
((${#parts[@]})) || parts=(train test touch)
if [[ -z ${FOLDER:-} ]]; then
  FOLDER=$(mktemp -d)
  trap 'rm -rf "$FOLDER"' EXIT
fi
clone=$FOLDER/fsdp.cpp
rows=()

add_row() { rows+=("| $1 | $(seconds_as_text "$2") |"); }

# In the clone, with nothing of this folder's.
there() { (cd "$clone" && env -u BUILD_DIR -u VENV -u FUZZ_DIR CCACHE_DISABLE=1 "$@"); }

# timed COMMAND...: what it says, with the seconds since its beginning before each line, into $FOLDER/log.
timed() {
  local began=$SECONDS line
  there "$@" 2>&1 | while IFS= read -r line; do
    printf '%s\n' "$line" >&2
    printf '%d %s\n' $((SECONDS - began)) "$line"
  done >"$FOLDER/log"
}
# When a line with this text came.
seconds_until() { grep -m1 -F "$1" "$FOLDER/log" | cut -d' ' -f1; }

measure_train() {
  local began=$SECONDS
  timed make train
  add_row "make train, to the first loss" "$(seconds_until ' step 1/')"
  add_row "of that, the build" $(($(seconds_until '[4/') - $(seconds_until '[3/')))
  add_row "make train, whole" $((SECONDS - began))
  timed make train
  add_row "make train again, to the first loss" "$(seconds_until ' step 1/')"
}

measure_test() {
  local began=$SECONDS
  there make test >&2
  add_row "make test" $((SECONDS - began))
}

measure_touch() {
  local began
  there env BUILD_TARGETS=engine_test scripts/build.sh >&2
  echo "// A change." >>"$clone/src/engine/gatherer.cpp"
  began=$SECONDS
  there env BUILD_TARGETS=engine_test scripts/build.sh >&2
  there .venv/bin/python scripts/run_tests.py --build-dir build --only '^engine_test$' >&2
  add_row "one file of the engine, and its tests" $((SECONDS - began))
}

[[ -d $clone ]] || git clone -q "$ROOT" "$clone"
for part in "${parts[@]}"; do
  case $part in
    train | test | touch) "measure_$part" ;;
    *) die "build_times.sh: unknown part '$part'" "Accepted: train, test, touch" ;;
  esac
done
printf '\n| on %s cores | |\n| --- | ---: |\n' "$(nproc)"
printf '%s\n' "${rows[@]}"

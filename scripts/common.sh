# Shared by the scripts: where things are, and how to say what is going on. To be sourced.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD_DIR=${BUILD_DIR:-$ROOT/build}
VENV=${VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python

say() { printf '== %s\n' "$*"; }

seconds_as_text() { if (($1 < 100)); then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# run_steps TITLE COMMAND [TITLE COMMAND]...: runs them one after the other, numbered, and says how long each took. A
# command that fails ends the script; it has said why itself.
run_steps() {
  local number=0 count=$(($# / 2)) began
  while (($#)); do
    number=$((number + 1))
    printf '[%d/%d] %s\n' "$number" "$count" "$1"
    began=$SECONDS
    $2
    printf '      done in %s\n' "$(seconds_as_text $((SECONDS - began)))"
    shift 2
  done
}

die() {
  printf 'error: %s\n' "$1" >&2
  shift
  if (($#)); then printf '       %s\n' "$@" >&2; fi
  exit 1
}

# The folder that holds LibTorch's include/ and lib/: TORCH_DIR where it is given, else the wheel's.
torch_dir() {
  if [[ -n ${TORCH_DIR:-} ]]; then
    [[ -e $TORCH_DIR/include/ATen/ATen.h ]] || die "TORCH_DIR=$TORCH_DIR holds no include/ATen/ATen.h" \
      "Name a LibTorch folder, or the torch folder of a Python environment."
    (cd "$TORCH_DIR" && pwd)
  else
    "$PYTHON" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])'
  fi
}

# As many compilers as there are processors, but no more than memory has room for (2.5 GiB each: eight tests at a time
# take 2.2).
default_jobs() {
  local memory_kib
  memory_kib=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo 2>/dev/null || echo 4194304)
  local by_memory=$((memory_kib / 2621440)) by_processors
  by_processors=$(nproc)
  local jobs=$((by_memory < by_processors ? by_memory : by_processors))
  echo $((jobs > 1 ? jobs : 1))
}

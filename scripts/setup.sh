#!/usr/bin/env bash
# setup.sh build|all: installs what is missing, and nothing else.
#   build  what compiling needs: Debian packages and LibTorch (no LibTorch when TORCH_DIR names one)
#   all    also what tests, benchmarks and the example need: torch and transformers for Python, a model, text, and the
#          headers of NCCL
source "$(dirname "$0")/common.sh"

package_names() { sed -E "s/#.*//; s/[[:space:]]//g; /^$/d" "$ROOT/scripts/debian-packages.txt"; }

is_installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

# With venv, and with the headers that compiled PyTorch models need (the tests run some).
has_whole_python() {
  python3 -c 'import ensurepip, os, sysconfig, venv; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

missing_packages() {
  local line
  while read -r line; do
    is_installed "${line#\?}" || echo "$line"
  done < <(package_names)
  has_whole_python || printf '%s\n' python3 python3-venv python3-pip python3-dev
}

as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "No Debian packages on this system. Needed: $(package_names | tr '\n' ' ')"
    return
  fi
  local missing required=() optional=() name
  missing=$(missing_packages)
  [[ -n $missing ]] || return 0
  for name in $missing; do
    if [[ $name == \?* ]]; then optional+=("${name#\?}"); else required+=("$name"); fi
  done
  if [[ $(id -u) != 0 ]] && ! command -v sudo >/dev/null; then
    [[ ${#required[@]} == 0 ]] && return
    die "these Debian packages are missing: ${required[*]}" "Install them as root: apt-get install ${required[*]}"
  fi
  say "Installing Debian packages: ${required[*]} ${optional[*]}"
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get update -q || say "apt-get update failed: going on with the lists that are there"
  if ((${#required[@]})); then
    as_root apt-get install -q -y --no-install-recommends "${required[@]}" ||
      die "apt-get could not install all of: ${required[*]}" "What it said is above."
  fi
  for name in "${optional[@]}"; do
    as_root apt-get install -q -y --no-install-recommends "$name" || say "Going on without $name"
  done
}

make_environment() {
  [[ -x $PYTHON ]] && return
  command -v python3 >/dev/null || die "python3 is missing" "Install Python 3.10 or newer."
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "python3 is $(python3 --version 2>&1); 3.10 or newer is needed"
  say "Creating the Python environment $VENV"
  python3 -m venv "$VENV" || die "python3 -m venv failed" "Install the package python3-venv."
}

# install_requirements NAME [pip option...]: scripts/NAME.txt, once for each content of that file.
install_requirements() {
  local file=$ROOT/scripts/$1.txt stamp=$VENV/.installed-$1 content
  shift
  content=$(sha256sum <"$file")
  [[ -f $stamp && $(<"$stamp") == "$content" ]] && return
  say "Installing the Python packages of ${file#"$ROOT"/}"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@" -r "$file" ||
    die "pip could not install the packages of $file" "What it said is above." \
      "A LibTorch that is already there serves the build: make build TORCH_DIR=…"
  printf '%s\n' "$content" >"$stamp"
}

what=${1:-all}
install_packages
if [[ $what == all || -z ${TORCH_DIR:-} ]]; then
  make_environment
  install_requirements requirements-torch
fi
if [[ $what == all ]]; then
  install_requirements requirements
  install_requirements requirements-files --no-deps
  "$ROOT/scripts/nccl_headers.sh" || say "Going on without NCCL: the build leaves it out, its tests are skipped"
fi

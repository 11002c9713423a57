#!/usr/bin/env bash
# setup.sh PART STAGE: installs what is missing for a stage, and nothing else.
#   PART   packages  of the system (scripts/packages.txt)
#          python    the environment VENV: LibTorch, and packages for Python
#          tables    the package for Python that examples/adult.json needs besides
#          wheel     packages for Python by which wheels are made
#   STAGE  build     compiling; no LibTorch where TORCH_DIR names one
#          train     make train: also what makes the model and the data ready
#          test      make test: also what tests and benchmarks need, and the headers of NCCL
# TORCH_INDEX: an index for pip that has LibTorch's build for this machine, beside those that pip knows.
source "$(dirname "$0")/common.sh"

is_apt_system() { command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; }
is_root() { [[ $(id -u) == 0 ]]; }
has_gpu() { [[ -e /dev/nvidia0 || -e /dev/dxg ]]; }

# ---------------------------------------------------------------- packages of the system

# package_lines STAGE [?]: of what the stage needs, or with `?` can do without: names in Debian and in Fedora, and by what
# it is found.
package_lines() {
  awk -v last="$1" -v mark="${2:-}" '
    BEGIN { order["build"] = 1; order["train"] = 2; order["test"] = 3 }
    /^#/ || NF == 0 { next }
    { stage = $1; optional = sub(/\?$/, "", stage) ? "?" : "" }
    order[stage] <= order[last] && optional == mark { print $2, $3, $4 }
  ' "$ROOT/scripts/packages.txt"
}

debian_packages() { package_lines "$@" | cut -d' ' -f1; }

# With venv, and for tests with the headers that compiled PyTorch models need.
has_whole_python() {
  python3 -c 'import ensurepip, venv' 2>/dev/null || return
  [[ $1 != test ]] || python3 -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

# dpkg-query fails where it does not know one of the packages, and still lists the others.
not_installed() {
  (($#)) || return 0
  local listed installed
  listed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  installed=$(awk '$2 == "installed" { print $1 }' <<<"$listed")
  printf '%s\n' "$@" | grep -vxF "$installed" || true
}

install_with_apt() {
  local required optional name refresh=
  mapfile -t required < <(not_installed $(debian_packages "$1"))
  mapfile -t optional < <(not_installed $(debian_packages "$1" '?'))
  has_whole_python "$1" || required+=(python3 python3-venv python3-pip)
  has_whole_python "$1" || [[ $1 != test ]] || required+=(python3-dev)
  # One that could not be installed before is tried again only when something else is missing.
  if ((${#required[@]} == 0)) && [[ -f $VENV/.without-packages && ${optional[*]} == "$(<"$VENV/.without-packages")" ]]; then
    optional=()
  fi
  ((${#required[@]} + ${#optional[@]})) || return 0
  if ! is_root && ! command -v sudo >/dev/null; then
    ((${#required[@]})) || return 0
    die "these system packages are missing, and installing them needs root: ${required[*]}" \
      "As root: apt-get update && apt-get install ${required[*]}"
  fi
  as_root() { if is_root; then "$@"; else sudo "$@"; fi; }
  export DEBIAN_FRONTEND=noninteractive
  echo "      installing ${required[*]} ${optional[*]}"
  as_root apt-get update -qq || echo "      apt-get update failed: continuing with the existing package lists"
  if ((${#required[@]})); then
    as_root apt-get install -qq -y --no-install-recommends "${required[@]}" >"$LOG" 2>&1 ||
      die "apt-get could not install all of: ${required[*]}" "Its last lines:" "$(tail -3 "$LOG")" \
        "No network? Install these packages by hand, and run this again."
  fi
  for name in "${optional[@]}"; do
    as_root apt-get install -qq -y --no-install-recommends "$name" >"$LOG" 2>&1 || echo "      continuing without $name"
  done
  remember_what_is_missing "$1"
}

remember_what_is_missing() {
  local missing
  mapfile -t missing < <(not_installed $(debian_packages "$1" '?'))
  mkdir -p "$VENV"
  printf '%s\n' "${missing[*]}" >"$VENV/.without-packages"
}

is_there() {
  case $1 in
    /*) [[ -e $1 ]] ;;
    */* | *.h) [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# Where there is no apt: looks for what is needed, and says what is missing.
look_for_packages() {
  local debian fedora found_by absent=() names=()
  while read -r debian fedora found_by; do
    [[ $found_by == - ]] || is_there "$found_by" || { absent+=("$debian"); names+=("$fedora"); }
  done < <(package_lines "$1")
  has_whole_python "$1" || { absent+=(python3 python3-venv); names+=(python3-devel); }
  ((${#absent[@]})) || return 0
  if command -v dnf >/dev/null; then
    die "these packages of the system are missing (by their names in Debian): ${absent[*]}" \
      "Where Fedora has them: dnf install $(printf '%s\n' "${names[@]}" | grep -vx -- - | tr '\n' ' ')" \
      "Install the others under /usr/local."
  fi
  die "these packages of the system are missing (by their names in Debian): ${absent[*]}" \
    "This script installs them with apt-get, which is missing here: install them by other means."
}

install_packages() {
  LOG=$(mktemp)
  trap 'rm -f "$LOG"' EXIT
  if is_apt_system; then install_with_apt "$1"; else look_for_packages "$1"; fi
}

# ---------------------------------------------------------------- packages for Python

make_environment() {
  [[ -x $PYTHON ]] && return
  command -v python3 >/dev/null || die "python3 is missing" "Install Python 3.10 or newer."
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "python3 is $(python3 --version 2>&1); 3.10 or newer is needed"
  echo "      creating the environment $VENV"
  python3 -m venv "$VENV" || die "python3 -m venv failed" "Install the package python3-venv."
}

check_room() {
  local free_mib
  mkdir -p "$VENV"
  free_mib=$(df -Pm "$VENV" | awk 'NR == 2 { print $4 }')
  ((free_mib >= $1)) || die "$VENV needs $1 MiB, but its disk has only $free_mib MiB left" \
    "VENV=… sets another folder for it, BUILD_DIR=… another folder to build in."
}

# Packages that are installed without some of what they name lack it on purpose: pip's remarks on that are left out.
pip_install() {
  "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@" \
    2> >(grep -vE "^ERROR: pip's dependency resolver|^[A-Za-z0-9_.-]+ [0-9.]+ requires " >&2)
}

# stamped NAME CONTENT: whether this was installed with this content before.
stamped() { [[ -f $VENV/.installed-$1 && $(<"$VENV/.installed-$1") == "$2" ]]; }
stamp() { printf '%s\n' "$2" >"$VENV/.installed-$1"; }

# A CPU build where there is no GPU and one is offered: it has no libraries of CUDA with it.
install_torch() {
  local version device=CPU content index=()
  version=$(sed -n 's/^torch==//p' "$ROOT/scripts/requirements-torch.txt")
  if has_gpu; then device=GPU; fi
  content="$version $device ${TORCH_INDEX:-}"
  stamped torch "$content" && return
  if [[ -n ${TORCH_INDEX:-} ]]; then index=(--extra-index-url "$TORCH_INDEX"); fi
  if has_gpu; then
    check_room 9000
    echo "      LibTorch $version with CUDA: about 2.5 GB to fetch, 5.4 GB on disk"
    pip_install "${index[@]}" "torch===$version" || no_torch "$version"
  elif check_room 2000 && pip_install "${index[@]}" "torch==$version+cpu" 2>/dev/null; then
    echo "      LibTorch $version, built for CPUs: 0.2 GB fetched, 0.8 GB on disk"
  else
    check_room 9000
    echo "      LibTorch $version: pip finds no CPU-only build, only one with CUDA: about 2.5 GB to fetch, 5.4 GB on disk."
    echo "      To fetch 0.2 GB instead: make … TORCH_INDEX=URL, with the CPU index that pytorch.org gives for pip."
    pip_install "${index[@]}" "torch==$version" || no_torch "$version"
  fi
  stamp torch "$content"
}

no_torch() {
  die "pip could not install torch $1 (its output is above)" \
    "No network? To build with a LibTorch that is already installed: make build TORCH_DIR=…"
}

# install_requirements NAME SIZE [pip option...]: scripts/requirements-NAME.txt, once for each content of that file.
install_requirements() {
  local name=$1 size=$2 file=$ROOT/scripts/requirements-$1.txt content
  shift 2
  content=$(sha256sum <"$file")
  stamped "$name" "$content" && return
  echo "      ${file#"$ROOT"/}: $size on disk"
  pip_install "$@" -r "$file" || die "pip could not install the packages of $file (its output is above)"
  stamp "$name" "$content"
}

install_python() {
  [[ $1 == build && -n ${TORCH_DIR:-} ]] && return
  make_environment
  install_torch
  [[ $1 == build ]] && return
  install_requirements train "0.3 GB"
  install_requirements files "0.1 GB" --no-deps
  if [[ $1 == test ]]; then
    install_requirements tables "0.2 GB"
    install_requirements test "0.4 GB"
    install_requirements wheel "0.02 GB"
  fi
  if [[ $1 == test ]] || has_gpu; then
    "$ROOT/scripts/nccl_headers.sh" || echo "      continuing without NCCL: it is left out, and its tests are skipped"
  fi
}

part=${1:-} stage=${2:-}
case $part/$stage in
  packages/build | packages/train | packages/test) install_packages "$stage" ;;
  python/build | python/train | python/test) install_python "$stage" ;;
  tables/) make_environment && install_requirements tables "0.2 GB" ;;
  wheel/) make_environment && install_requirements wheel "0.02 GB" ;;
  *) die "setup.sh: unknown part or stage '$*'" "Accepted: packages or python with build, train or test; tables; and wheel" ;;
esac

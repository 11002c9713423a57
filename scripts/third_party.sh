#!/usr/bin/env bash
# third_party.sh: copies the header-only libraries of third_party/ anew from the Debian packages that are installed, and
# writes their versions to third_party/versions.txt. Of Gloo only those headers are taken that LibTorch's ProcessGroupGloo
# and src/ include. TORCH_DIR names the LibTorch; without it, the environment's is taken.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
PLACE=third_party

# Folder in third_party, Debian package, and the folder or files that are copied.
readonly TABLE="
gloo           libgloo-dev          gloo
nlohmann-json  nlohmann-json3-dev   nlohmann
xxhash         libxxhash-dev        xxhash.h
cli11          libcli11-dev         CLI
dygraphs       libjs-dygraphs       dygraph.min.js,dygraph.min.css
"

# Names of Gloo's headers, relative to /usr/include, that a file with these includes reads.
gloo_headers() {
  local torch
  torch=$(torch_dir)
  printf '#include <%s>\n' gloo/transport/tcp/device.h gloo/transport/tcp/loop.h \
    torch/csrc/distributed/c10d/ProcessGroupGloo.hpp |
    g++ -std=c++20 -DUSE_C10D_GLOO -x c++ -M -I "$torch/include" -I "$torch/include/torch/csrc/api/include" - |
    tr ' ' '\n' | sed -n 's|^/usr/include/\(gloo/.*\)|\1|p' | sort
}

copy_headers() {
  local name=$1 content=$2
  case $name in
    gloo) gloo_headers | (cd /usr/include && xargs cp --parents -t "$ROOT/$PLACE/gloo") ;;
    dygraphs) cp -L /usr/share/javascript/dygraphs/{dygraph.min.js,dygraph.min.css} "$PLACE/dygraphs" ;;
    *) cp -r "/usr/include/$content" "$PLACE/$name" ;;
  esac
}

while read -r name package content; do
  [[ -n $name ]] || continue
  version=$(dpkg-query -W -f='${Version}' "$package") || die "$package is not installed" "apt-get install $package"
  rm -rf "${PLACE:?}/$name"
  mkdir -p "$PLACE/$name"
  copy_headers "$name" "$content"
  cp "/usr/share/doc/$package/copyright" "$PLACE/$name/copyright"
  printf '%-14s %-19s %s\n' "$name" "$package" "$version"
done <<<"$TABLE" >"$PLACE/versions.new"
{
  echo "# Folder, Debian package and version of which the files are unchanged copies (scripts/third_party.sh)."
  cat "$PLACE/versions.new"
} >"$PLACE/versions.txt"
rm "$PLACE/versions.new"
say "$(du -sh "$PLACE" | cut -f1) in $PLACE"

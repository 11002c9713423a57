#!/usr/bin/env bash
# fresh_debian.sh RELEASE [GOAL...]: makes a chroot of a Debian release (bookworm, trixie) with nothing but its base system,
# clones HEAD into it, and runs make GOAL (train, then test) there, timed. Needs root and the packages debootstrap and git.
# CHROOT: the folder (a new one, removed afterwards; one that is named stays). MIRROR: of Debian's packages.
# CERTIFICATES: a file with those to trust besides, where a proxy has its own. WHEELS: a folder in which pip looks first.
source "$(dirname "$0")/common.sh"

release=${1:-}
[[ $release == bookworm || $release == trixie ]] || die "fresh_debian.sh: unknown release '$release'" "Accepted: bookworm, trixie"
shift
goals=("$@")
((${#goals[@]})) || goals=(train test)
[[ $(id -u) == 0 ]] || die "fresh_debian.sh needs root, for chroot and mount"
command -v debootstrap >/dev/null || die "debootstrap is missing" "apt-get install debootstrap"

folder=${CHROOT:-$(mktemp -d /var/tmp/fresh-debian-XXXXXX)}
remove() { [[ -n ${CHROOT:-} ]] || rm -rf --one-file-system "$folder"; }
trap remove EXIT

if [[ ! -e $folder/etc/debian_version ]]; then
  say "Making a chroot of $release in $folder"
  debootstrap --variant=minbase "$release" "$folder" ${MIRROR:+"$MIRROR"} >"$folder.log" 2>&1 ||
    die "debootstrap failed" "$(tail -3 "$folder.log")"
  rm -f "$folder.log"
fi
cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$folder/etc/hosts"
variables=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 CI="${CI:-}" TORCH_INDEX="${TORCH_INDEX:-}")
if [[ -n ${CERTIFICATES:-} ]]; then
  cp -L "$CERTIFICATES" "$folder/etc/certificates.crt"
  variables+=(PIP_CERT=/etc/certificates.crt SSL_CERT_FILE=/etc/certificates.crt)
fi
mkdir -p "$folder/wheels"
[[ -z ${WHEELS:-} ]] || variables+=(PIP_FIND_LINKS=/wheels)
rm -rf "$folder/root/fsdp"
git clone -q "$ROOT" "$folder/root/fsdp"

# In namespaces of their own, so that mounts and processes end with the run.
for goal in "${goals[@]}"; do
  say "make $goal on $release"
  began=$SECONDS
  unshare --mount --pid --fork bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
    [[ -z $2 ]] || mount --bind "$2" "$1/wheels"
    shift 2
    exec "$@"
  ' - "$folder" "${WHEELS:-}" chroot "$folder" env -i "${variables[@]}" bash -ec '
      command -v make >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends make >/dev/null; }
      cd /root/fsdp && make '"$goal"
  say "make $goal on $release took $(seconds_as_text $((SECONDS - began)))"
done

#!/usr/bin/env bash
# Installs the Debian packages of a folder in a bare Debian root, uses them, and removes them again.
#   packaging/bare-root.sh <folder> <version>
# Needs root and mmdebstrap; otherwise it says so and is skipped.
set -euo pipefail
folder=$(realpath "$1") version=$2
work=$(mktemp -d)
root=$work/root log=$work/log
finish() {
	mountpoint -q "$root/proc" && umount "$root/proc"
	rm -rf --one-file-system "$work"
}
trap finish EXIT
skip() { echo "-- bare root: SKIPPED: $1"; exit 0; }
fail() { echo "bare root: $1" >&2; exit 1; }
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
quietly() { "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "failed: $*"; }; }
installed() { inside dpkg-query -W -f '${Package}\n' 2>/dev/null | grep -cE '^(libheadroom|headroom|python3-headroom)' || true; }
files() { (cd "$root" && find . -xdev -not -path './proc/*' -not -path './tmp/*' -not -path './var/*' | sort); }

[ "$(id -u)" = 0 ] || skip "it needs root"
command -v mmdebstrap >/dev/null || skip "there is no mmdebstrap"
. /etc/os-release
echo "-- bare root: making $VERSION_CODENAME with gcc and python3"
timeout -k 10 600 mmdebstrap --quiet --variant=apt --include=gcc,libc6-dev,libjansson4,pkg-config,python3 "$VERSION_CODENAME" "$root" >"$log" 2>&1 || { tail -n 3 "$log"; skip "mmdebstrap failed (no network?)"; }
mount -t proc proc "$root/proc" || skip "it cannot mount /proc"
files >"$log.before"

mkdir "$root/tmp/packages"
cp "$folder"/*.deb "$root/tmp/packages"
echo "-- bare root: installing the packages"
quietly inside timeout 600 apt-get install -y --no-install-recommends $(cd "$root" && ls -d tmp/packages/*.deb | sed 's/^/\//')
[ "$(installed)" = 4 ] || fail "$(installed) packages are installed, not 4"
[ "$(inside headroom --version)" = "headroom $version" ] || fail "headroom --version says $(inside headroom --version)"
quietly inside headroom demo --steps 2 --out /tmp/demo
inside headroom run -- env | grep '^LD_PRELOAD=/usr/lib/.*/headroom/libheadroom_cuda.so$' >/dev/null || fail "headroom run does not find libheadroom_cuda.so"
inside headroom run --device cpu -- env | grep '^PYTHONPATH=/usr/lib/python3/dist-packages/headroom/_start$' >/dev/null || fail "headroom run does not find the Python package"
quietly inside sh -c 'cc -Wall -Werror /usr/share/doc/libheadroom-dev/examples/allocate.c $(pkg-config --cflags --libs headroom) -o /tmp/allocate && /tmp/allocate'
quietly inside sh -c 'cc /usr/share/doc/libheadroom-dev/examples/train.c $(pkg-config --cflags --libs headroom_runtime) -o /tmp/train && /tmp/train'
[ "$(inside python3 -c 'import headroom; print(headroom.__version__, headroom.memory_info("GPU:0")["peak"])')" = "$version 0" ] || fail "the Python package does not work"

[ "$(inside python3 -m headroom --version)" = "headroom $version" ] || fail "python3 -m headroom does not run the command"
quietly inside python3 -c "import importlib.metadata as m, importlib.util as u; assert m.version('headroom') == '$version'; assert all(u.find_spec(p.value) for p in m.entry_points(group='pytest11')), 'the plug-in for pytest'"
for file in man/man1/headroom.1.gz man/man1/headroom-metrics.1.gz bash-completion/completions/headroom zsh/site-functions/_headroom fish/vendor_completions.d/headroom.fish \
	doc/libheadroom-dev/docs/fleets.md doc/libheadroom-dev/examples/mpi/train.c; do
	[ -s "$root/usr/share/$file" ] || fail "there is no /usr/share/$file"
done

echo "-- bare root: removing them"
quietly inside apt-get purge -y libheadroom0 libheadroom-dev headroom-tools python3-headroom
[ "$(installed)" = 0 ] || fail "packages are left"
left=$(files | comm -13 "$log.before" - | grep -v -E '^\./(root|dev)|__pycache__|^\./etc/ld\.so\.cache' || true)
[ -z "$left" ] || fail "files are left after removing the packages:"$'\n'"$left"
echo "-- bare root: ok"

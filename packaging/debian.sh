#!/usr/bin/env bash
# Builds the Debian packages from the source archive, checks them with lintian, and installs and removes them in a bare root.
#   packaging/debian.sh <source archive> <folder for the packages>
#
# The version of a package is that of the library. DEBFULLNAME and DEBEMAIL name the maintainer, if they are set.
set -euo pipefail
cd "$(dirname "$0")/.."
archive=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

fail() { echo "debian: $1" >&2; exit 1; }
# quietly <command>...: prints its output only if it fails
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 60 "$work/log" >&2; fail "failed: $*"; }; }

version=$(basename "$archive" .tar.gz)
version=${version#headroom-}
echo "-- debian: building the packages of $version"
cp "$archive" "$work/headroom_$version.orig.tar.gz"
tar -xzf "$archive" -C "$work"
tree=$work/headroom-$version
cp -r packaging/debian "$tree/debian"
date=$(date -R -u -d "@$(tar -tvzf "$archive" --full-time --utc | awk 'NR == 1 { print $4 " " $5 " UTC" }' | date -u -f - +%s)")
sed -e "s/@VERSION@/$version/" -e "s/@DATE@/$date/" "$tree/debian/changelog.in" >"$tree/debian/changelog"
rm "$tree/debian/changelog.in"
[ -z "${DEBEMAIL:-}" ] || sed -i "s/Headroom maintainers <headroom@example.org>/${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>/" "$tree/debian/control" "$tree/debian/changelog"
(cd "$tree" && DEB_BUILD_OPTIONS="noautodbgsym parallel=${JOBS:-$(nproc)}" quietly dpkg-buildpackage -us -uc)

echo "-- debian: lintian"
# --allow-root: CI is root. The suppressed tag asks for a report of the intent to package in Debian's own archive.
lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$work"/headroom_*.changes || fail "lintian has complaints, see above"
rm -f "$out"/*.deb
cp "$work"/*.deb "$out"
ls "$out"

packaging/bare-root.sh "$out" "$version"

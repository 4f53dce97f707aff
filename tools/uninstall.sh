#!/usr/bin/env bash
# Removes the files that `make install` puts under a prefix, and folders of its own that are empty then. DESTDIR is put in front.
#   tools/uninstall.sh <build folder> <prefix>
set -euo pipefail
build=$1 prefix=$2
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
DESTDIR=$staged cmake --install "$build" --prefix "$prefix" >/dev/null
root=${DESTDIR:-}
removed=0
while IFS= read -r path; do
	[ -e "$root$path" ] || [ -L "$root$path" ] || continue
	rm -- "$root$path"
	removed=$((removed + 1))
done < <(cd "$staged" && find . \( -type f -o -type l \) | sed 's/^\.//')
# Deepest first. The folders of a system's prefix stay, even if they are empty.
while IFS= read -r path; do
	case $path in
	*/headroom | */headroom/*) ;;
	/usr/* | /) continue ;;
	"${prefix%/}"/*) ;;
	*) continue ;;
	esac
	rmdir -- "$root$path" 2>/dev/null || true
done < <(cd "$staged" && find . -depth -type d | sed 's/^\.//')
[ $removed -gt 0 ] || { echo "uninstall: nothing of Headroom is in $root$prefix; name the prefix that it was installed to: make uninstall PREFIX=/opt/headroom" >&2; exit 1; }
echo "uninstalled $removed files from $root$prefix"

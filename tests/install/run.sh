#!/usr/bin/env bash
# Installs into an empty prefix and builds programs against it in every supported way: pkg-config and CMake, shared and static, C
# and C++.
#   tests/install/run.sh <build folder>
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "install: $1" >&2; exit 1; }
# quietly <command>...: prints its output only if it fails
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "failed: $*"; }; }
needs_library() { readelf -dW "$1" | grep -q 'NEEDED.*libheadroom\.so'; }

# Moved after installing, because packages are built in one place and used in another.
quietly cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
source=tests/install/consumer.c
version=$(awk '/^#define HR_VERSION_(MAJOR|MINOR|PATCH) /{ v = v sep $3; sep = "." } END { print v }' include/headroom.h)

for file in include/*.h; do
	[ -f "$prefix/$file" ] || fail "$file was not installed"
done
quietly "$prefix/bin/headroom" devices

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
[ "$(pkg-config --modversion headroom)" = "$version" ] || fail "pkg-config says $(pkg-config --modversion headroom), the header $version"
read -ra cflags < <(pkg-config --cflags headroom)
read -ra libs < <(pkg-config --libs headroom)
read -ra static_libs < <(pkg-config --libs --static headroom)
strict=(-Wall -Wextra -Wpedantic -Werror)

for compiler in gcc clang; do
	command -v $compiler >/dev/null || continue
	quietly $compiler -std=c11 "${strict[@]}" "${cflags[@]}" $source "${libs[@]}" -o "$work/shared"
	needs_library "$work/shared" || fail "pkg-config --libs does not link the shared library"
	quietly "$work/shared"
	quietly $compiler -std=c11 "${strict[@]}" "${cflags[@]}" $source -Wl,-Bstatic "${static_libs[@]}" -Wl,-Bdynamic -o "$work/static"
	! needs_library "$work/static" || fail "the static link is not static"
	quietly "$work/static"
done

cxx=$(command -v c++ || command -v g++ || command -v clang++) || fail "no C++ compiler"
quietly "$cxx" -std=c++17 "${strict[@]}" -xc++ "${cflags[@]}" $source "${libs[@]}" -o "$work/cxx"
quietly "$work/cxx"

quietly cmake -S tests/install -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DEXPECTED_VERSION="$version"
quietly cmake --build "$work/cmake"
quietly "$work/cmake/with_shared"
quietly "$work/cmake/with_static"
needs_library "$work/cmake/with_shared" || fail "headroom::headroom is not the shared library"
! needs_library "$work/cmake/with_static" || fail "headroom::headroom_static is not static"

echo "install: $version works with pkg-config and CMake, shared and static, C and C++"

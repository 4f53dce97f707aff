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
needs_library() { readelf -dW "$1" | grep -q 'NEEDED.*libheadroom'; }

# Moved after installing, because packages are built in one place and used in another.
quietly cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
version=$(awk '/^#define HR_VERSION_(MAJOR|MINOR|PATCH) /{ v = v sep $3; sep = "." } END { print v }' include/headroom.h)

for file in include/*.h share/man/man1/headroom.1 share/man/man1/headroom-run.1 share/bash-completion/completions/headroom \
	share/zsh/site-functions/_headroom share/fish/vendor_completions.d/headroom.fish share/doc/headroom/{README.md,docs/lms.md,examples/allocate.c}; do
	[ -s "$prefix/$file" ] || fail "$file was not installed"
done
quietly "$prefix/bin/headroom" devices

"$prefix/bin/headroom" run -- env | grep -E "^LD_PRELOAD=.*/prefix/lib.*/headroom/libheadroom_cuda.so$" >/dev/null || fail "headroom run does not find libheadroom_cuda.so"

# make uninstall removes what make install wrote, and nothing else.
quietly cmake --install "$build" --prefix "$work/second"
echo mine >"$work/second/lib/mine"
quietly tools/uninstall.sh "$build" "$work/second"
[ "$(cd "$work/second" && find . | sort | tr '\n' ' ')" = ". ./lib ./lib/mine " ] || fail "after uninstalling there is: $(cd "$work/second" && find .)"
! tools/uninstall.sh "$build" "$work/nowhere" >"$work/log" 2>&1 || fail "uninstalling nothing succeeds"
grep -q "make uninstall PREFIX=" "$work/log" || fail "uninstalling nothing does not say what to do"

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
[ "$(pkg-config --modversion headroom)" = "$version" ] || fail "pkg-config says $(pkg-config --modversion headroom), the header $version"
strict=(-Wall -Wextra -Wpedantic -Werror)
# flags <pkg-config arguments>...: sets $flags
flags() { read -ra flags < <(pkg-config "$@"); }
# static_flags <packages>...: the same with the archives of Headroom instead of its shared libraries
static_flags() { read -ra flags < <(pkg-config --cflags --libs --static "$@" | sed -E 's/-l(headroom\w*)/-l:lib\1.a/g'); }
# logs <program> [shared|static]: runs it, and looks for the TensorBoard log that it must have written
logs() {
	rm -rf "$work/logs"
	quietly "$1" "$work/logs" ${2:+"$2"}
	[ "${2:-}" = static ] || ls "$work"/logs/plugins/profile/*/*.xplane.pb >/dev/null || fail "$1 wrote no log for TensorBoard"
}
all=(headroom_runtime headroom_analysis)

for compiler in gcc clang; do
	command -v $compiler >/dev/null || continue
	flags --cflags --libs headroom
	quietly $compiler -std=c11 "${strict[@]}" tests/install/consumer.c "${flags[@]}" -o "$work/shared"
	needs_library "$work/shared" || fail "pkg-config --libs does not link the shared library"
	logs "$work/shared" shared
	flags --cflags --libs "${all[@]}"
	quietly $compiler -std=c11 "${strict[@]}" tests/install/consumer_all.c "${flags[@]}" -o "$work/shared"
	logs "$work/shared"
	static_flags headroom
	quietly $compiler -std=c11 "${strict[@]}" tests/install/consumer.c "${flags[@]}" -o "$work/static"
	! needs_library "$work/static" || fail "the static link is not static"
	logs "$work/static" static
	static_flags "${all[@]}"
	quietly $compiler -std=c11 "${strict[@]}" tests/install/consumer_all.c "${flags[@]}" -o "$work/static"
	! needs_library "$work/static" || fail "the static link of all libraries is not static"
	logs "$work/static"
done

cxx=$(command -v c++ || command -v g++ || command -v clang++) || fail "no C++ compiler"
flags --cflags --libs "${all[@]}"
for source in consumer consumer_all; do
	quietly "$cxx" -std=c++17 "${strict[@]}" -xc++ tests/install/$source.c "${flags[@]}" -o "$work/$source"
done
# Every public macro works in C++. HR_API, HR_CHECK_RESULT and macros that the headers undefine again are not for programs.
for macro in $(sed -nE 's/^#define (HR_[A-Z0-9_]+).*/\1/p' include/*.h | sort -u); do
	[[ $macro = HR_API || $macro = HR_CHECK_RESULT ]] || grep -q "^#undef $macro$" include/*.h || grep -qw "$macro" tests/install/macros.cpp || fail "tests/install/macros.cpp does not use $macro"
done
for compiler in g++ clang++; do
	command -v $compiler >/dev/null || continue
	quietly $compiler -std=c++17 "${strict[@]}" tests/install/macros.cpp "${flags[@]}" -o "$work/macros"
	quietly "$work/macros"
done
logs "$work/consumer" shared
logs "$work/consumer_all"

quietly cmake -S tests/install -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DEXPECTED_VERSION="$version"
quietly cmake --build "$work/cmake"
logs "$work/cmake/with_shared" shared
logs "$work/cmake/with_static" static
logs "$work/cmake/all_shared"
logs "$work/cmake/all_static"
needs_library "$work/cmake/with_shared" || fail "headroom::headroom is not the shared library"
! needs_library "$work/cmake/with_static" || fail "headroom::headroom_static is not static"

echo "install: $version works with pkg-config and CMake, shared and static, C and C++"

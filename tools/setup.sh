#!/usr/bin/env bash
# Installs missing packages. Needs no rights if nothing is missing.
#   tools/setup.sh build   to compile: cmake, a C compiler; zlib and jansson if available
#   tools/setup.sh test    to run `make test`: the same, clang with its sanitizers, python3, pkg-config, libzstd; groff, gdb, XProf, PyTorch and Chromium if available
#   tools/setup.sh package to run `make package-test`: Debian's packaging tools, a compiler and an emulator for arm64, if available
#   tools/setup.sh bench   for `make bench`: mimalloc and PyTorch, for comparison, if available
# Needs apt-get (Debian, Ubuntu), as root or through sudo. Without it, or without a network, optional packages are left out and
# required ones are listed.
set -euo pipefail
level=${1:?usage: tools/setup.sh build|test|package|bench}

needed=() wished=()
have() { command -v "$1" >/dev/null 2>&1; }
need() { have "$1" || needed+=("$2"); }
has_header() {
	local compiler
	for compiler in "${CC:-cc}" gcc clang; do
		have "$compiler" && { echo "#include <$1>" | "$compiler" -E -xc - >/dev/null 2>&1; return; }
	done
	return 1
}
has_library() {
	local folder
	for folder in /lib /usr/lib /usr/local/lib /lib64 /usr/lib64 /lib/*-linux-gnu /usr/lib/*-linux-gnu; do
		[ -e "$folder/$1" ] && return
	done
	return 1
}
wish_header() { has_header "$1" || wished+=("$2"); }
need_header() { has_header "$1" || needed+=("$2"); }

# Links like `make test`. Fails if clang's runtime libraries, a separate package, are missing.
clang_sanitizes() {
	local dir rc=0
	dir=$(mktemp -d)
	echo 'int LLVMFuzzerTestOneInput(const unsigned char *, unsigned long); int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { (void)d; (void)n; return 0; }' >"$dir/f.c"
	echo 'int main(void) { return 0; }' >"$dir/m.c"
	clang -fsanitize=fuzzer,address,undefined "$dir/f.c" -o "$dir/a" >/dev/null 2>&1 || rc=1
	clang -fsanitize=thread "$dir/m.c" -o "$dir/a" >/dev/null 2>&1 || rc=1
	rm -rf "$dir"
	return $rc
}

clang_major() {
	if have clang; then clang -dumpversion | cut -d. -f1
	else apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1
	fi
}

missing() {
	needed=() wished=()
	need cmake cmake
	have "${CC:-cc}" || needed+=(gcc libc6-dev)
	have ninja || have make || needed+=(make)
	have ninja || wished+=(ninja-build)
	case $level in
	build)
		wish_header zlib.h zlib1g-dev
		wish_header jansson.h libjansson-dev ;;
	test)
		need_header zlib.h zlib1g-dev
		need_header jansson.h libjansson-dev
		need gcc gcc
		need python3 python3
		python3 -c 'import ensurepip, venv' 2>/dev/null || wished+=(python3-venv) # for XProf and PyTorch
		have c++ || have g++ || wished+=(g++) # for the plug-in of PyTorch
		python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null ||
			wished+=(python3-dev) # for torch.compile
		need pkg-config pkg-config
		has_library libzstd.so.1 || needed+=(libzstd1) # packed traces; loaded at run time, so no header is needed
		if ! have clang || ! clang_sanitizes; then
			have clang || needed+=(clang)
			needed+=(libclang-rt-dev) # packages() replaces it by an existing name
		fi
		have groff || wished+=(groff-base) # checks the manual pages
		have gdb || wished+=(gdb-minimal) # debugs a program under headroom run
		have llvm-symbolizer || wished+=(llvm) # names instead of addresses in sanitizer reports
		have chromium || have chromium-browser || have google-chrome || wished+=(chromium) ;; # opens the HTML page of a profile; without it that test is skipped
	package)
		wish_header zlib.h zlib1g-dev
		wish_header jansson.h libjansson-dev
		need python3 python3
		python3 -c 'import ensurepip, venv' 2>/dev/null || wished+=(python3-venv) # for the wheel and the site
		have git || wished+=(git) # for the source archive
		have dpkg-buildpackage || wished+=(dpkg-dev)
		have dh || wished+=(debhelper)
		have dh_python3 || wished+=(dh-python)
		have fakeroot || wished+=(fakeroot)
		have lintian || wished+=(lintian)
		have mmdebstrap || wished+=(mmdebstrap) # a bare root to install the packages in
		have pkg-config || wished+=(pkg-config)
		have clang || wished+=(clang)
		have g++ || wished+=(g++)
		have aarch64-linux-gnu-gcc || wished+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
		have qemu-aarch64 || wished+=(qemu-user) ;;
	bench)
		wish_header mimalloc.h libmimalloc-dev
		python3 -c 'import torch' 2>/dev/null || wished+=(python3-torch libopenblas0-openmp) ;;
	*) echo "setup: unknown level '$level'" >&2; exit 2 ;;
	esac
}

# The names of packages in apt. Until clang 14 the runtime libraries were in another package, on which clang depended.
packages() {
	local name major
	for name in "$@"; do
		if [ "$name" = libclang-rt-dev ]; then
			major=$(clang_major)
			for name in "libclang-rt-$major-dev" "libclang-common-$major-dev"; do
				apt-cache show "$name" >/dev/null 2>&1 && { echo "$name"; break; }
			done
		else
			echo "$name"
		fi
	done
}

# Test dependencies that are not packages.
extras() { [ "$level" != test ] || { "$(dirname "$0")/xprof.sh" && "$(dirname "$0")/torch.sh"; }; }

missing
[ ${#needed[@]} -eq 0 ] && [ ${#wished[@]} -eq 0 ] && { extras; exit 0; }

as_root=()
can_install=yes
if ! have apt-get; then can_install=
elif [ "$(id -u)" != 0 ]; then
	# sudo may ask for a password: use it only for required packages, and only on a terminal.
	if ! have sudo; then can_install=
	elif sudo -n true 2>/dev/null; then as_root=(sudo -n)
	elif [ -t 0 ] && [ ${#needed[@]} -gt 0 ]; then as_root=(sudo)
	else can_install=
	fi
fi

if [ -n "$can_install" ]; then
	all=("${needed[@]}" "${wished[@]}")
	echo "setup: installing ${all[*]}"
	apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::http::Timeout=20 -o Acquire::Retries=1 -o Dpkg::Use-Pty=0)
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	install() {
		local names
		mapfile -t names < <(packages "$@")
		"${apt[@]}" install -y --no-install-recommends "${names[@]}" >"$log" 2>&1
	}
	# Detects a missing network: killing an update is harmless, killing an install is not.
	if timeout --foreground 300 "${apt[@]}" update >"$log" 2>&1; then
		if ! install "${all[@]}"; then # one name that does not exist fails all of them
			[ ${#needed[@]} -eq 0 ] || install "${needed[@]}" || cat "$log" >&2
			for name in "${wished[@]}"; do install "$name" || true; done
		fi
	fi
	missing
fi

[ ${#wished[@]} -eq 0 ] || echo "setup: going on without ${wished[*]}"
if [ ${#needed[@]} -gt 0 ]; then
	echo "setup: needed and not here: ${needed[*]}" >&2
	echo "setup: install them, for example: sudo apt-get install $(have apt-cache && packages "${needed[@]}" | tr '\n' ' ' || echo "${needed[*]}")" >&2
	exit 1
fi
extras

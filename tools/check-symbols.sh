#!/usr/bin/env bash
# What the shared libraries export, and what they need.
#   tools/check-symbols.sh <build folder>
set -uo pipefail
build=${1:-build}
rc=0
complain() { echo "check-symbols: $1" >&2; rc=1; }
names() { awk '{print $NF}' | sed 's/@.*//' | sort -u; }
declared_in() { cat "$@" | tr '\n' ' ' | grep -oE 'HR_API [^;]*;' | grep -oE '\bhr_[a-z0-9_]+\(' | tr -d '(' | sort -u; }
major=$(awk '/^#define HR_VERSION_MAJOR /{ print $3 }' include/headroom.h) minor=$(awk '/^#define HR_VERSION_MINOR /{ print $3 }' include/headroom.h)

# check <library> <headers...>: exports exactly what these headers declare with HR_API, and needs nothing but libc and $needs.
check() {
	local library=$build/$1.so; shift
	[ -f "$library" ] || { complain "$library is not there"; return; }
	local symbols exported declared bad tls
	symbols=$(nm -D --defined-only "$library" | grep -v ' A ')
	exported=$(grep -v '@HEADROOM_PRIVATE$' <<<"$symbols" | names)
	declared=$(declared_in "$@")
	bad=$(comm -23 <(echo "$declared") <(echo "$exported"))
	[ -z "$bad" ] || complain "$library: declared in a public header, but not exported:"$'\n'"$bad"
	bad=$(comm -13 <(echo "$declared") <(echo "$exported"))
	[ -z "$bad" ] || complain "$library: exported, but in none of its public headers:"$'\n'"$bad"
	private=$(grep '@HEADROOM_PRIVATE$' <<<"$symbols" | names)
	# A program that needs a function of this minor release does not start with an older library.
	bad=$(comm -23 <(grep "@HEADROOM_$major\$" <<<"$symbols" | names) <(declared_in tests/abi/"$first"/include/*.h))
	[ -z "$bad" ] || complain "$library: not in the headers of $first, so their names belong into the node HEADROOM_${major}_$minor of cmake/symbols.map:"$'\n'"$bad"
	bad=$(comm -12 <(grep "@HEADROOM_${major}_$minor\$" <<<"$symbols" | names) <(declared_in $(ls -d tests/abi/[0-9]*/include/*.h | grep -v "/$major\.$minor/")))
	[ -z "$bad" ] || complain "$library: in the headers of an older release, and in the node of this one in cmake/symbols.map:"$'\n'"$bad"

	# It stands on libc alone, of which libm is a part, and on libheadroom.
	bad=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so|libm\.so|ld-linux)' | grep -vE "^$needs")
	[ -z "$bad" ] || complain "$library needs more than libc: $bad"

	# Its thread-local memory is of the initial-exec kind. A program that loads the library late has about 1.6 KiB of that left for it.
	tls=$(readelf -lW "$library" | awk '$1 == "TLS" { print $6 }')
	total_tls=$((total_tls + ${tls:-0}))

	# It never prints and never ends the process.
	bad=$(nm -D --undefined-only "$library" | names | grep -xE '_?exit|_Exit|quick_exit|printf|vprintf|puts|putchar|fprintf|vfprintf|fputs|perror|stdout|stderr|__printf_chk|__fprintf_chk')
	[ -z "$bad" ] || complain "$library prints or exits: $bad"
	summary+=("$(wc -l <<<"$exported") in $(basename "$library")")
}

first=$(ls tests/abi | grep -E "^$major\.[0-9]+\$" | sort -V | head -n 1)
total_tls=0 summary=() needs='$'
check libheadroom include/headroom.h include/headroom_{oom,lms,record,backend}.h
shared=$private needs='libheadroom\.so'
check libheadroom_runtime include/headroom_runtime.h
[ -z "$private" ] || complain "libheadroom_runtime shares internals: $private"
needs='(libheadroom|libz|libjansson)\.so' # the last two read other formats, where they were found
check libheadroom_analysis include/headroom_analysis.h
[ -z "$private" ] || complain "libheadroom_analysis shares internals: $private"
# The preloaded library stands in front of the program's other libraries: it exports what it answers, and nothing by accident.
answered=$({ awk '/define HR__ANSWERED_/ { variant = /ASYNC|LAUNCHES|SEARCHES|CAPTURES/; inside = 1 } /^$/ { inside = 0 }
	inside && match($0, /^\tX\(cu[A-Za-z0-9_]*/) { name = substr($0, 4, RLENGTH - 3); print name; if (variant) print name "_ptsz" }' plugins/cuda/driver_calls.h
	printf '%s\n' dlsym dlopen headroom_cuda_driver_symbol InitializeInjectionNvtx2; } | sort -u)
exported=$(nm -D --defined-only "$build/libheadroom_cuda.so" | names)
[ "$answered" = "$exported" ] || complain "libheadroom_cuda.so exports other symbols than driver_calls.h lists:"$'\n'"$(diff <(echo "$answered") <(echo "$exported"))"
bad=$(readelf -dW "$build/libheadroom_cuda.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so|libdl\.so|libpthread\.so|ld-linux|libheadroom\.so)')
[ -z "$bad" ] || complain "libheadroom_cuda.so needs more than libheadroom: $bad"
[ $total_tls -le 576 ] || complain "$total_tls bytes of thread-local memory; at most 576, because other libraries of a program need theirs, and dlopen fails without"

# What libheadroom shares with the other two is used by one of them, by the preloaded library, by the Python package, or by the table of system calls that tests of Python programs load.
used=$({ nm --undefined-only "$build"/libheadroom_{runtime,analysis}.a | names; nm -D --undefined-only "$build/libheadroom_cuda.so" | names; grep -oE '\bhr__[a-z_]+' "$(dirname "$0")/../tests/fault_os.c"; grep -rhoE '\bhr__[a-z_]+' --include='*.py' "$(dirname "$0")/../python"; } | sort -u)
bad=$(comm -23 <(echo "$shared") <(echo "$used"))
[ -z "$bad" ] || complain "marked HR__SHARED, but used by no other library and no test:"$'\n'"$bad"

[ $rc -ne 0 ] || { printf -v text '%s, ' "${summary[@]}"; echo "symbols: ${text%, }; $(wc -l <<<"$shared") shared internals; $total_tls bytes of thread-local memory"; }
exit $rc

#!/usr/bin/env bash
# The command must compile without the libraries that are optional, whatever this machine has.
set -uo pipefail
cd "$(dirname "$0")/.."
rc=0
for file in cli/*.c; do
	for have in "" -DHR_HAVE_ZLIB=1 -DHR_HAVE_JANSSON=1; do
		# With a library's switch on, its header must be there.
		case $have in
		*ZLIB*) echo '#include <zlib.h>' | "${CC:-cc}" -E -xc - >/dev/null 2>&1 || continue ;;
		*JANSSON*) echo '#include <jansson.h>' | "${CC:-cc}" -E -xc - >/dev/null 2>&1 || continue ;;
		esac
		"${CC:-cc}" -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -Iinclude -Isrc -Icli $have "$file" || { echo "check-options: $file $have" >&2; rc=1; }
	done
done
[ $rc -ne 0 ] || echo "options: cli/ compiles with and without zlib and jansson"
exit $rc

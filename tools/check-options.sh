#!/usr/bin/env bash
# Checks that the command, the importers and the exporters compile with and without the optional libraries, whatever is installed.
set -uo pipefail
cd "$(dirname "$0")/.."
rc=0

# A library's switch can only be tested if its header is installed.
has() { echo "#include <$1>" | "${CC:-cc}" -E -xc - >/dev/null 2>&1; }
for file in cli/*.c cli/*/*.c src/analysis/export/*.c src/analysis/import/*.c src/analysis/import/*/*.c; do
	for have in "" -DHR_HAVE_ZLIB=1 -DHR_HAVE_JANSSON=1; do
		case $have in *ZLIB*) has zlib.h || continue ;; esac
		case $have in *JANSSON*) has jansson.h || continue ;; esac
		# shellcheck disable=SC2086
		"${CC:-cc}" -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -Iinclude -Isrc -Icli $have "$file" || {
			echo "check-options: $file $have" >&2
			rc=1
		}
	done
done
[ $rc -ne 0 ] || echo "options: the command, the importers and the exporters compile with and without zlib and jansson"
exit $rc

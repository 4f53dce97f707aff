#!/usr/bin/env bash
# Lists the C files that clang-format would change; with --fix, changes them. Without file arguments, all files.
# Not part of `make test`: tables and drawings may be formatted by hand where that is easier to read.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format >/dev/null || { echo "format: clang-format is not here; on Debian: apt-get install clang-format" >&2; exit 1; }
fix=
if [ "${1:-}" = --fix ]; then fix=yes; shift; fi
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.c' '*.h')
[ -z "$fix" ] || exec clang-format -i "${files[@]}"
rc=0
for file in "${files[@]}"; do
	clang-format "$file" | cmp -s - "$file" || { echo "$file"; rc=1; }
done
exit $rc

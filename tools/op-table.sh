#!/bin/bash
# op-table.sh <build folder> - regenerates the table of ops in docs/runtime.md from the library's op table.
set -euo pipefail

manual=docs/runtime.md
TABLE=$("$1"/tests/runtime/test_op_memory --table)
export TABLE
awk '/^<!-- end of ops -->/ { skip = 0 }
	!skip { print }
	/^<!-- ops: made by / { print ENVIRON["TABLE"]; skip = 1 }' "$manual" >"$manual.new"
mv "$manual.new" "$manual"

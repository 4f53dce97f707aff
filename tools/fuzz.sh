#!/usr/bin/env bash
# Runs every libFuzzer program of a build for some seconds, several at a time, starting from the committed corpus.
#   tools/fuzz.sh <build folder> <seconds each>
# New inputs are kept in <build folder>/corpus/<name>. Minimize the corpus before committing them:
#   build-fuzz/fuzz/fuzz_<name> -merge=1 fuzz/corpus/<name> build-fuzz/corpus/<name>
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2
mkdir -p "$build/crashes"

fuzz_one() { # program
	local name=${1##*/fuzz_} seeds=() log
	log=$build/fuzz-$name.log
	mkdir -p "$build/corpus/$name"
	[ -d "fuzz/corpus/$name" ] && seeds=("fuzz/corpus/$name")
	if "$1" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/crashes/$name-" \
		"$build/corpus/$name" "${seeds[@]}" >"$log" 2>&1; then
		printf '%-24s %10s runs\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
	else
		grep -m 1 -A 24 -E 'ERROR: |runtime error: ' "$log" || tail -n 40 "$log"
		echo "fuzz: $name failed; the input is in $build/crashes; run it again with: $1 <input>"
		return 1
	fi
}
export -f fuzz_one
export build seconds
programs=("$build"/fuzz/fuzz_*)
[ -x "${programs[0]}" ] || { echo "fuzz: no programs in $build/fuzz" >&2; exit 1; }
printf '%s\0' "${programs[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" bash -c 'fuzz_one "$0"'

#!/usr/bin/env bash
# Runs every benchmark of a build, one after another, under a heading that says on what machine: figures without it mean nothing.
# Those of GPUs are not among them (`make gpu-bench` runs them), nor the solver, which wants a trace. The curve of Large Model Support is
# drawn to <build folder>/lms-curve.svg; docs/lms-curve.svg is a copy of one run.
#   tools/bench.sh <build folder>
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
programs=("$build"/bench/*)
[ -x "${programs[0]}" ] || { echo "bench: no programs in $build/bench" >&2; exit 1; }

model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
echo "machine: ${model:-$(uname -m)}, $(nproc) processors, Linux $(uname -r); $("$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")" --version | head -n 1)"
for program in "${programs[@]}"; do
	[ -f "$program" ] && [ -x "$program" ] || continue
	arguments=()
	case ${program##*/} in
	gpu | gpu_lms | lms_solver) continue ;;
	lms) arguments=(--svg "$build/lms-curve.svg") ;;
	esac
	echo
	echo "== ${program##*/}"
	"$program" "${arguments[@]}"
done

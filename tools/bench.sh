#!/usr/bin/env bash
# Runs every benchmark of a build, one after another, under a heading that says on what machine: figures without it mean nothing.
# That of models has PyTorch beside it where python3 has that (Debian: python3-torch, with libopenblas0-openmp).
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
	models) # beside PyTorch, where there is one
		for python in python3 /usr/bin/python3; do
			"$python" -c 'import torch' 2>/dev/null || continue
			echo
			echo "== models"
			"$python" bench/models.py "$build"
			continue 2
		done ;;
	lms) arguments=(--svg "$build/lms-curve.svg") ;;
	esac
	echo
	echo "== ${program##*/}"
	"$program" "${arguments[@]}"
done

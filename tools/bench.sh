#!/usr/bin/env bash
# Runs the benchmarks of a build, one after another, under a heading that describes the machine, because figures depend on it.
# The benchmark of models is compared with PyTorch if python3 has it (Debian: python3-torch, with libopenblas0-openmp).
# Not run: the GPU benchmarks (see `make gpu-bench`), and the solver, which needs a trace. The curve of Large Model Support is
# written to <build folder>/lms-curve.svg; docs/lms-curve.svg is a copy of one run.
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
	models) # compared with PyTorch, if it is installed
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

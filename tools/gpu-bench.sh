#!/usr/bin/env bash
# What the library does on the GPU of this machine, beside the CUDA driver and PyTorch's allocator, in one run. Where there is no GPU the
# same runs on the emulated device, to show that it works; Large Model Support needs a card and says so. Needs gcc and CMake; installs nothing.
#   tools/gpu-bench.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

build=build-gpu
start=$SECONDS
configure_gpu
build $build bench_gpu bench_gpu_lms headroom_cli
mkdir -p $build/traces
for packed in traces/{gpt2,gpt2var,resnet,serve,gpt2b16-use}.csv.gz; do
	plain=$build/traces/$(basename "$packed" .gz)
	[ "$plain" -nt "$packed" ] || gzip -dc "$packed" >"$plain"
done

model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
echo "machine: ${model:-$(uname -m)}, $(nproc) processors, Linux $(uname -r); $(gcc --version | head -n 1)"
if command -v nvidia-smi >/dev/null; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true; fi
echo "built in $((SECONDS - start)) s"
rc=0
$build/bench/gpu --traces $build/traces --figures $build/gpu-figures || rc=$?
echo
# A training step with less memory than it needs, and tensors that leave and return again and again.
$build/bench/gpu_lms --trace $build/traces/gpt2b16-use.csv --limits 40,26 --policies learned,lru --rounds || rc=$?
echo
if command -v python3 >/dev/null; then
	PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 timeout 200 python3 bench/gpu_torch.py --traces $build/traces --figures $build/gpu-figures --build $build ||
		echo "PyTorch: gave up ($?)"
else
	echo "PyTorch: skipped, there is no python3"
fi
echo
echo "gpu-bench: $((SECONDS - start)) s in all"
exit $rc

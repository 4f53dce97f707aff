#!/usr/bin/env bash
# Measures the library on this machine's GPU, compared with the CUDA driver and PyTorch's allocator, in one run. Without a GPU it runs
# on the emulated device, to show that it works, and reports what needs a card. Needs gcc and CMake; installs nothing.
#   tools/gpu-bench.sh [library] [steps] [pytorch] [rounds]
#
# LMS_ROUNDS   rounds of evicting and restoring: of 8 GiB with verify, and of 64 MiB (default 100,10000)
# LMS_LIMITS   limits of the training step, in GB (default 40,26)
#
# Repeats the short tables at the end, with a line for each part. The output of a part is in build-gpu/gpu-bench-<part>.log.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

build=build-gpu
start=$SECONDS
configure_gpu && build $build bench_gpu bench_gpu_lms headroom_cli || exit 1
mkdir -p $build/traces
for packed in traces/{gpt2,gpt2var,resnet,serve,gpt2b16-use}.csv.gz; do
	plain=$build/traces/$(basename "$packed" .gz)
	[ "$plain" -nt "$packed" ] || gzip -dc "$packed" >"$plain" || exit 1
done

model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
echo "machine: ${model:-$(uname -m)}, $(nproc) processors, Linux $(uname -r); $(gcc --version | head -n 1)"
if command -v nvidia-smi >/dev/null; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true; fi
echo "built in $((SECONDS - start)) s"

# Each part has a timeout, about twice its time on an H200.
part_library() {
	timeout 100 $build/bench/gpu --traces $build/traces --figures $build/gpu-figures
}

# A training step with less memory than it needs.
part_steps() {
	timeout 240 $build/bench/gpu_lms --trace $build/traces/gpt2b16-use.csv --limits "${LMS_LIMITS:-40,26}" --policies learned,lru
}

part_pytorch() {
	if ! command -v python3 >/dev/null; then
		echo "PyTorch: skipped, there is no python3"
		return 0
	fi
	PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 timeout 120 python3 bench/gpu_torch.py --traces $build/traces --figures $build/gpu-figures \
		--build $build || echo "PyTorch: gave up ($?)"
}

# Tensors that are evicted and restored repeatedly.
part_rounds() {
	timeout 260 $build/bench/gpu_lms --rounds "${LMS_ROUNDS:-100,10000}"
}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(library steps pytorch rounds)
summary=() failed=0
for part in "${parts[@]}"; do
	log=$build/gpu-bench-$part.log begin=$SECONDS
	echo
	if "part_$part" 2>&1 | tee "$log"; then result=ok; else result="FAILED (${PIPESTATUS[0]})" failed=1; fi
	summary+=("$(printf '%-10s %-12s %4d s' "$part" "$result" $((SECONDS - begin)))")
done

echo
for part in "${parts[@]}"; do
	case $part in
	steps) grep -E '^(plain:|policy |learned |lru )' $build/gpu-bench-steps.log ;;
	rounds) sed -n '/^evicted and restored/,$p' $build/gpu-bench-rounds.log ;;
	esac
done
echo
printf '%s\n' "${summary[@]}"
printf '%-10s %-12s %4d s\n' gpu-bench "$([ $failed = 0 ] && echo ok || echo FAILED)" $((SECONDS - start))
exit $failed

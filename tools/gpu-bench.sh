#!/usr/bin/env bash
# Measures the library on this machine's GPU, compared with the CUDA driver and PyTorch's allocator, in one run. Without a GPU it runs
# on the emulated device, to show that it works, and reports what needs a card. Needs gcc and CMake; installs nothing.
#   tools/gpu-bench.sh [library] [steps] [pytorch] [rounds] [models] [plugin] [programs]
#
# Without arguments all but programs (what `headroom run` costs CUDA programs) and plugin (the PyTorch plug-in, which needs a PyTorch with CUDA, and minutes
# more). Parts of plugin are plugin_workloads, plugin_lms and plugin_exact; their timeouts are estimates.
#
# LMS_ROUNDS   rounds of evicting and restoring: of 8 GiB with verify, and of 64 MiB (default 100,10000)
# LMS_LIMITS   limits of the training step, in GB (default 40,26)
# PROGRAMS     those of programs, such as torch,launches (default all of bench/cuda_programs.py)
# HEADROOM_TORCH_PYTHON   the interpreter that has PyTorch (default python3)
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

# The runtime's models beside PyTorch's.
part_models() {
	local python=${HEADROOM_TORCH_PYTHON:-python3} options=()
	build $build bench_models || return 1
	"$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || options+=(--no-torch)
	[ "$(gpu_backend $build)" = cuda ] || options+=(--small)
	PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 timeout -k 5 240 python3 bench/card_models.py $build --python "$python" --seconds 200 --each 60 "${options[@]}"
}

# torch_bench <seconds> <arguments>: runs a benchmark of the plug-in with the package of the source tree. The plug-in's C++ is compiled on first use.
torch_bench() {
	local seconds=$1 python=${HEADROOM_TORCH_PYTHON:-python3}
	shift
	build $build product || return 1
	if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
		echo "$1: skipped, there is no PyTorch that sees a card"
		return 0
	fi
	PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 timeout -k 5 "$seconds" "$python" "$@" --build $build
}

part_programs() {
	build $build product || return 1
	PYTHONDONTWRITEBYTECODE=1 timeout -k 5 400 "${HEADROOM_TORCH_PYTHON:-python3}" bench/cuda_programs.py --build $build ${PROGRAMS:+--programs "$PROGRAMS"}
}

part_plugin_workloads() {
	torch_bench 330 bench/torch_workloads.py --all
}

part_plugin_lms() {
	torch_bench 330 bench/torch_lms.py --rows native,headroom,lms,limits,save_on_cpu,checkpoint
}

# Whether losses at a limit are the same to the bit.
part_plugin_exact() {
	local failed=0
	torch_bench 240 bench/torch_lms.py --deterministic || failed=1
	torch_bench 120 bench/torch_lms.py --deterministic --model resnet || failed=1
	torch_bench 120 bench/torch_lms.py --deterministic --model unet || failed=1
	return $failed
}

part_plugin() {
	local failed=0 piece
	for piece in workloads lms exact; do "part_plugin_$piece" || failed=1; done
	return $failed
}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(library steps pytorch rounds models)
summary=() failed=0
for part in "${parts[@]}"; do
	log=$build/gpu-bench-$part.log begin=$SECONDS
	echo
	if "part_$part" 2>&1 | tee "$log"; then result=ok; else result="FAILED (${PIPESTATUS[0]})" failed=1; fi
	summary+=("$(printf '%-16s %-12s %4d s' "$part" "$result" $((SECONDS - begin)))")
done

echo
for part in "${parts[@]}"; do
	case $part in
	steps) grep -E '^(plain:|policy |learned |lru )' $build/gpu-bench-steps.log ;;
	programs | models) cat "$build/gpu-bench-$part.log" ;;
	rounds) sed -n '/^evicted and restored/,$p' $build/gpu-bench-rounds.log ;;
	plugin*) grep -E '^ +(workload|gpt2|resnet|unet|serve) |^ +gpt2(var|ckpt) |^fragmentation:|^  (native|expandable|headroom) |^(row|native|headroom|lms|limit|save_on_cpu|checkpoint) |^[a-z0-9]+, [0-9]+ steps|^DIFFERENT' \
		"$build/gpu-bench-$part.log" ;;
	esac
done
echo
printf '%s\n' "${summary[@]}"
printf '%-16s %-12s %4d s\n' gpu-bench "$([ $failed = 0 ] && echo ok || echo FAILED)" $((SECONDS - start))
exit $failed

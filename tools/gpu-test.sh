#!/usr/bin/env bash
# Runs the conformance suite on this machine's GPU, and again under compute-sanitizer if that is installed. Without a GPU the suite runs
# on the other devices, including the emulated one, and reports that. Needs gcc and CMake; installs nothing.
#   tools/gpu-test.sh [build] [devices] [conformance] [memcheck] [beside] [oom] [runtime] [torch] [programs]
#
# HEADROOM_REQUIRE_GPU=1  no GPU is a failure
# HR_TEST_SCALE           multiplies the counts of the tests (default 1)
# HR_TEST_ROUNDS          rounds of allocating, copying and comparing on the GPU (default 10000)
# HEADROOM_TORCH_PYTHON   the interpreter that has PyTorch (default python3)
# TORCH_SECONDS           timeout of each program of the PyTorch plug-in (default 180)
# MEMCHECK_SECONDS        timeout of each program under compute-sanitizer (default 75); a timeout without an error is not a failure
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

build=build-gpu
export HR_TEST_SCALE=${HR_TEST_SCALE:-1} HR_TEST_ROUNDS=${HR_TEST_ROUNDS:-10000}
export HR_TEST_TIMEOUT=${HR_TEST_TIMEOUT:-2} # opening a GPU takes a part of a second, and some tests open it repeatedly
required=${HEADROOM_REQUIRE_GPU:-0}
memcheck_seconds=${MEMCHECK_SECONDS:-75}
note= # a stage's remark in the summary

stage_build() {
	configure_gpu && build $build conformance_tests
}

stage_devices() {
	$build/headroom devices || return 1
	note="GPU:0 is $(gpu_backend $build)"
	[ "$(gpu_backend $build)" = cuda ] && return 0
	[ "$required" = 1 ] || { note+=": no GPU here, the emulated one stands in"; return 0; }
	note+=", and HEADROOM_REQUIRE_GPU is set"
	return 1
}

stage_conformance() {
	local rc=0 on
	ctest --test-dir $build -j "$JOBS" -L conformance -V --no-tests=error >$build/conformance.log 2>&1 || rc=1
	grep -E '^ *[0-9]+/[0-9]+ Test|tests passed|tests failed' $build/conformance.log
	# A line of the log is "<test number>: <output of the program>".
	[ $rc = 0 ] || grep -E '^[0-9]+: (not ok|# FAILED|# to reproduce|#   (left|right|expected|got|last message))' $build/conformance.log
	on=$(sed -n 's/^[0-9]*: # on //p' $build/conformance.log | sort -u | paste -sd ';' | sed 's/;/; /g')
	echo "on: $on"
	sed -nE 's/^[0-9]+: # (skipped on cuda: .*)/\1/p' $build/conformance.log | sort -u
	note="$(grep -cE '^[0-9]+: ok ' $build/conformance.log) tests"
	grep -qE '^[0-9]+: # on cuda' $build/conformance.log && note+=", on the GPU too"
	if [ "$required" = 1 ] && [[ $note != *GPU* ]]; then
		note+=", none of them on the GPU"
		rc=1
	fi
	sed -nE "s/^$(sed -nE 's/^([0-9]+): #   [0-9]+ rounds,.*/\1/p' $build/conformance.log | head -n 1): #(.*(on |rounds|resident|locked).*)/ \1/p" $build/conformance.log
	return $rc
}

# Runs all tests of a program in one process, because the sanitizer does not follow forks. The log stays in the build folder.
memcheck_one() {
	local name=$1 rc=0 log=$build/memcheck-$1.log begin=$SECONDS
	HR_TEST_SUBJECT=cuda HR_TEST_SCALE=0.1 HR_TEST_ROUNDS=200 HR_TEST_CONTENTS_ONLY=1 timeout -k 5 "$memcheck_seconds" \
		compute-sanitizer --tool memcheck --error-exitcode 99 --report-api-errors no --require-cuda-init no \
		"$build/tests/conformance/$name" --no-fork >"$log" 2>&1 || rc=$?
	# 124: ended by timeout's SIGTERM. 137: killed, by timeout's SIGKILL if the time is over.
	if { [ $rc = 124 ] || { [ $rc = 137 ] && [ $((SECONDS - begin)) -ge "$memcheck_seconds" ]; }; } &&
		! grep -qE '^========= (Invalid|Misaligned|Program hit)|^not ok|^# FAILED' "$log"; then
		echo "$name: cut off after $memcheck_seconds s, no error until then"
	elif [ $rc = 0 ]; then
		echo "$name: $(grep -m 1 'ERROR SUMMARY' "$log" | sed 's/^=* *//')"
	else
		{
			echo "$name: FAILED (exit status $rc after $((SECONDS - begin)) s)"
			grep -E '^=========|^# (FAILED|to repro)|^not ok' "$log" | head -n 30
			echo "the last lines of $log:"
			tail -n 40 "$log" | sed 's/^/    /'
		} >"$log.why" # printed at once, because several programs run at a time
		cat "$log.why"
		return 1
	fi
}

stage_memcheck() {
	local rc=0 program pids=() pid
	if ! command -v compute-sanitizer >/dev/null; then note="skipped: no compute-sanitizer"; return 0; fi
	if [ "$(gpu_backend $build)" != cuda ]; then note="skipped: no GPU"; return 0; fi
	for program in $build/tests/conformance/*_conformance; do
		memcheck_one "${program##*/}" &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
	note="${#pids[@]} programs"
	return $rc
}

# Runs Headroom in the process and the CUDA context of another library.
stage_beside() {
	local rc=0
	if [ "$(gpu_backend $build)" != cuda ]; then note="skipped: no GPU"; return 0; fi
	build $build product && python3 tests/gpu/beside_pytorch.py $build/libheadroom.so || rc=$?
	[ $rc = 77 ] && { note="skipped: no PyTorch"; return 0; }
	return $rc
}

# Prints the OOM report of a card.
stage_oom() {
	build $build headroom_cli example_oom_report example_oom_run || return 1
	HEADROOM_COMMAND=$PWD/$build/headroom tests/oom/test_example.sh || return 1
	"$build/examples/oom_report" | sed -n 1,20p
}

# Runs the runtime's ops on the card: against the host, against PyTorch's results in tests/runtime/golden, and training in functions.
stage_runtime() {
	local rc=0 status name cuda count=0
	if [ "$(gpu_backend $build)" != cuda ]; then note="skipped: no GPU"; return 0; fi
	if [ -z "${HEADROOM_CUDA_LIBRARIES:-}" ]; then
		cuda=$("${HEADROOM_TORCH_PYTHON:-python3}" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null) && export HEADROOM_CUDA_LIBRARIES=$cuda
	fi
	build $build card_card_ops card_card_fetch card_captured runtime_golden runtime_training_golden || return 1
	for name in card/test_card_ops card/test_card_fetch card/test_captured runtime/test_golden runtime/test_training_golden; do
		status=0
		HR_TEST_CARD=1 timeout -k 5 120 "$build/tests/$name" >"$build/${name##*/}.log" 2>&1 || status=$?
		count=$((count + 1))
		echo "$name: $(grep -c '^ok ' "$build/${name##*/}.log") tests ok, exit status $status"
		[ $status = 0 ] || { grep -vE '^ok |^# pass' "$build/${name##*/}.log" | tail -n 30; rc=1; }
	done
	note="$count programs"
	return $rc
}

# Runs the programs that use the PyTorch plug-in on the card, each with the package of the source tree. The plug-in's C++ is compiled first, so that no
# program's timeout includes it.
stage_torch() {
	local rc=0 status program count=0 python=${HEADROOM_TORCH_PYTHON:-python3}
	if [ "$(gpu_backend $build)" != cuda ]; then note="skipped: no GPU"; return 0; fi
	if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then note="skipped: no PyTorch with CUDA"; return 0; fi
	build $build product || return 1
	export PYTHONPATH=$PWD/python HEADROOM_LIBRARY_DIR=$PWD/$build PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
	timeout -k 5 180 "$python" -c 'from headroom.torch import _build; _build.build(True)' || { note="the plug-in does not compile"; return 1; }
	for program in tests/gpu/torch_*.py; do
		[ -e "$program" ] || { note="no programs"; return 0; }
		status=0
		timeout -k 5 "${TORCH_SECONDS:-180}" "$python" "$program" || status=$?
		count=$((count + 1))
		[ $status = 0 ] || { echo "$program: FAILED (exit status $status)"; rc=1; }
	done
	note="$count programs"
	return $rc
}

# Programs that use CUDA without Headroom, under `headroom run`.
stage_programs() {
	if [ "$(gpu_backend $build)" != cuda ]; then note="skipped: no GPU"; return 0; fi
	build $build product && HEADROOM_COMMAND=$PWD/$build/headroom "${HEADROOM_TORCH_PYTHON:-python3}" tests/gpu/test_cuda_programs.py
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(build devices conformance memcheck beside oom runtime torch programs)
start=$SECONDS
summary=() failed=0
for stage in "${stages[@]}"; do
	echo "== $stage"
	begin=$SECONDS note=
	if "stage_$stage"; then result=ok; else result=FAILED failed=1; fi
	summary+=("$(printf '%-12s %-6s %4d s   %s' "$stage" "$result" $((SECONDS - begin)) "$note")")
	# The other stages depend on these.
	case $stage in build | devices) [ $result = ok ] || break ;; esac
done
echo
printf '%s\n' "${summary[@]}"
printf '%-12s %-6s %4d s   (scale %s, %s jobs)\n' total "$([ $failed = 0 ] && echo ok || echo FAILED)" $((SECONDS - start)) "$HR_TEST_SCALE" "$JOBS"
exit $failed

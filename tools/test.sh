#!/usr/bin/env bash
# Runs the stages of `make test`, or the given ones, and prints a summary with one line for each.
#   tools/test.sh [release] [asan] [tsan] [fuzz] [checks] [install]
#
# HR_TEST_SCALE    multiplies the counts of the tests (default 1); sanitizer builds multiply it by SANITIZER_SCALE (default 0.1)
# FUZZ_SECONDS     for each fuzz target (default 15)
# TEST_TIMEOUT     seconds after which a test program counts as hung (default 600); HR_TEST_TIMEOUT multiplies the limits of single tests
# JOBS             number of parallel jobs (default: the number of processors)
#
# The other stages run even if one fails.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

export HR_TEST_SCALE=${HR_TEST_SCALE:-1}
sanitizer_scale=$(awk -v scale="$HR_TEST_SCALE" -v part="${SANITIZER_SCALE:-0.1}" 'BEGIN { print scale * part }')
fuzz_seconds=${FUZZ_SECONDS:-15}
timeout=${TEST_TIMEOUT:-600}

# Kernels that the stand-in of NVRTC compiles for tests of cards: it is not sanitized, so they are the same in all builds.
export HR_TEST_KERNELS=$PWD/build/fake_cuda/kernels

wrapper=() # prefix of the ctest command

# say <text>: prints what the stage does, because compiling takes minutes and prints nothing.
say() { echo "-- $stage: $*"; }

stage_release() {
	configure build "" -DHEADROOM_WERROR=ON -DHEADROOM_TEST_TIMEOUT="$timeout" && say building && build build && say testing && run_ctest build
}

stage_asan() {
	configure build-asan clang -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -gline-tables-only" -DHEADROOM_SANITIZE=address,undefined -DHEADROOM_DEBUG=ON \
		-DHEADROOM_WERROR=ON -DHEADROOM_TEST_TIMEOUT="$timeout" && say building && build build-asan tests && say testing || return 1
	local -x HR_TEST_SCALE=$sanitizer_scale
	local -x ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
	run_ctest build-asan
}

# ThreadSanitizer of older compilers cannot place its shadow memory if the kernel randomises many address bits; setarch -R disables that.
tsan_wrapper() {
	local probe=build-tsan/probe
	echo 'int main(void) { return 0; }' | clang -fsanitize=thread -xc - -o $probe || return 1
	if ./$probe 2>/dev/null; then wrapper=()
	elif setarch "$(uname -m)" -R ./$probe 2>/dev/null; then wrapper=(setarch "$(uname -m)" -R)
	else
		echo "ThreadSanitizer does not run here: vm.mmap_rnd_bits is too large for it ('sysctl vm.mmap_rnd_bits=28' helps)" >&2
		return 1
	fi
}

stage_tsan() {
	configure build-tsan clang -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -gline-tables-only" -DHEADROOM_SANITIZE=thread -DHEADROOM_DEBUG=ON \
		-DHEADROOM_WERROR=ON -DHEADROOM_TEST_TIMEOUT="$timeout" && say building && build build-tsan threads_tests && tsan_wrapper && say testing || return 1
	local -x HR_TEST_SCALE=$sanitizer_scale
	# die_after_fork=0: some tests start threads in a forked child.
	local -x TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0
	run_ctest build-tsan -L threads
}

stage_fuzz() {
	configure build-fuzz clang -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -gline-tables-only" -DHEADROOM_SANITIZE=address,undefined -DHEADROOM_DEBUG=ON \
		-DHEADROOM_FUZZ=ON && say building && build build-fuzz fuzzers && say fuzzing && tools/fuzz.sh build-fuzz "$fuzz_seconds"
}

stage_checks() {
	local rc=0
	tools/check-options.sh || rc=1
	tools/check-cuda-declarations.sh || rc=1
	configure build "" && build build product || return 1
	python3 tools/check-layers.py build || rc=1
	tools/check-symbols.sh build || rc=1
	python3 tools/check-header-examples.py build || rc=1
	return $rc
}

stage_install() {
	configure build "" && say building && build build product && say installing && tests/install/run.sh build
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(release asan tsan fuzz checks install)
start=$SECONDS
summary=() failed=0
for stage in "${stages[@]}"; do
	echo "== $stage"
	begin=$SECONDS
	if "stage_$stage"; then result=ok; else result=FAILED failed=1; fi
	summary+=("$(printf '%-8s %-6s %4d s' "$stage" "$result" $((SECONDS - begin)))")
	echo "== ${summary[-1]}"
done
echo
printf '%s\n' "${summary[@]}"
printf '%-8s %-6s %4d s   (scale %s, fuzzing %s s each, %s jobs)\n' total "$([ $failed = 0 ] && echo ok || echo FAILED)" $((SECONDS - start)) \
	"$HR_TEST_SCALE" "$fuzz_seconds" "$JOBS"
exit $failed

#!/usr/bin/env bash
# Compiles the libraries, the command and the tests of the core and of plugins/cuda for arm64 and runs them with qemu-user, at a small part of the counts.
#   packaging/arm64.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
	command -v $tool >/dev/null || { echo "-- arm64: SKIPPED: there is no $tool"; exit 0; }
done
echo "-- arm64: building"
configure build-arm64 "" -DCMAKE_TOOLCHAIN_FILE=packaging/aarch64.cmake -DHEADROOM_ZLIB=OFF -DHEADROOM_JANSSON=OFF -DHEADROOM_WERROR=ON -DHEADROOM_TEST_TIMEOUT=1200
build build-arm64 headroom headroom_runtime headroom_analysis core_tests cuda_tests
echo "-- arm64: testing under emulation"
export HR_TEST_SCALE=0.02 HR_TEST_TIMEOUT=10
left_out=$(grep -v '^#' packaging/arm64-left-out.txt | paste -sd '|')
run_ctest build-arm64 -L '^(unit|conformance|model|misuse|cuda)$' -E "$left_out"

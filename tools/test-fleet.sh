#!/usr/bin/env bash
# Runs the tests of jobs and tools with the real packages of others, which are too large for `make test`: Prometheus and Open MPI of Debian. There they
# are skipped if a package is missing; here they fail, unless it cannot be installed, for example without a network. `make test` must have built build/.
#   tools/test-fleet.sh [argument of ctest]...
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

missing() {
	command -v prometheus >/dev/null && command -v promtool >/dev/null || echo prometheus
	command -v mpicc >/dev/null || echo libopenmpi-dev
	command -v mpirun >/dev/null || echo openmpi-bin
}

# install <package>...: quiet, also about a failure; the caller looks at what is there then.
install() {
	local as_root=() log
	log=$(mktemp)
	[ "$(id -u)" = 0 ] || as_root=(sudo -n)
	local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::http::Timeout=20 -o Acquire::Retries=1 -o Dpkg::Use-Pty=0)
	{ timeout --foreground 300 "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null || tail -n 3 "$log"
	rm -f "$log"
}

packages=($(missing))
if [ ${#packages[@]} -gt 0 ]; then
	echo "-- fleet: installing ${packages[*]}"
	install "${packages[@]}"
	packages=($(missing))
fi
[ ${#packages[@]} -eq 0 ] || echo "-- fleet: SKIPPED the tests that need ${packages[*]}: it cannot be installed here"

wrapper=()
configure build
build build
[ ${#packages[@]} -gt 0 ] || export HEADROOM_REQUIRE_FLEET=1
run_ctest build -R '^fleet\.' "$@"

#!/usr/bin/env bash
# Runs the tests of jobs and tools with the real packages of others, which are too large for `make test`: Prometheus and Open MPI of Debian. Without
# them these tests are skipped there; here they fail. `make test` must have built build/.
#   tools/test-fleet.sh [argument of ctest]...
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

packages=()
command -v prometheus >/dev/null || packages+=(prometheus)
command -v mpicc >/dev/null || packages+=(libopenmpi-dev openmpi-bin)
if [ ${#packages[@]} -gt 0 ]; then
	echo "test-fleet: installing ${packages[*]}"
	as_root=()
	[ "$(id -u)" = 0 ] || as_root=(sudo -n)
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update >/dev/null
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install -y --no-install-recommends "${packages[@]}" >/dev/null
fi

wrapper=()
configure build && build build
HEADROOM_REQUIRE_FLEET=1 run_ctest build -R '^fleet\.' "$@"

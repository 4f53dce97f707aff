#!/usr/bin/env bash
# Puts XProf, which tests let read our exports, into a virtual environment: build/xprof, or the folder given. About 35 MB to fetch, 130 MB on disk.
# Says so and ends well when that cannot be done, as without a network; the tests that need it are skipped then.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/xprof}

works() { "$folder/bin/python" -c 'import xprof.server' >/dev/null 2>&1; }
without() { echo "setup: going on without XProf: $1"; rm -rf "$folder"; exit 0; }

[ -e "$folder/.done" ] && [ "$folder/.done" -nt tools/xprof.txt ] && works && exit 0
echo "setup: fetching XProf"
rm -rf "$folder"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || without "it needs Python 3.10"
python3 -m venv "$folder" >"$log" 2>&1 || without "python3 -m venv fails (on Debian: apt-get install python3-venv)"
timeout --foreground 600 "$folder/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir --no-deps --retries 1 --timeout 20 \
	-r tools/xprof.txt >"$log" 2>&1 || without "$(tail -n 1 "$log")"
works || without "it does not start on this machine"
touch "$folder/.done"

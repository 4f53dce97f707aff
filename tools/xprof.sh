#!/usr/bin/env bash
# Installs XProf, which tests use to read our exports, into a virtual environment: build/xprof, or the given folder. Downloads about 35 MB,
# uses 130 MB of disk. If that fails, for example without a network, prints the reason and exits with 0; tests that need XProf are skipped.
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

#!/usr/bin/env bash
# Installs PyTorch, which the tests of plugins/torch use, into a virtual environment in the user's cache: it is too large for each build folder. If that
# fails, for example without a network, prints the reason and exits with 0; the tests are skipped. TORCH=0 leaves it out.
#
# TORCH_VERSION   the version to install beside others, and for the tests to use (default 2.11)
set -uo pipefail
cd "$(dirname "$0")/.."
version=${TORCH_VERSION:-2.11}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/headroom/torch-$version

without() { echo "setup: going on without PyTorch: $1"; exit 0; }

[ "${TORCH:-1}" != 0 ] || exit 0
[ ! -e "$folder/.done" ] || exit 0
python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' || without "it needs Python 3.10 to 3.14"
echo "setup: installing PyTorch $version for the tests of its plug-in into $folder: takes 4.7 GB and a few minutes, once (TORCH=0 leaves it out)"
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock" # another checkout may be installing it
flock -w 1800 9 || without "another process has been installing it for half an hour"
[ ! -e "$folder/.done" ] || exit 0
free=$(df -Pk "$(dirname "$folder")" | awk 'NR == 2 { print int($4 / 1024 / 1024) }')
[ "${free:-0}" -ge 8 ] || without "only $free GB of disk are free"
rm -rf "$folder"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
python3 -m venv "$folder" >"$log" 2>&1 || { rm -rf "$folder"; without "python3 -m venv fails (on Debian: apt-get install python3-venv)"; }
timeout --foreground 1800 "$folder/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir --retries 1 --timeout 60 \
	"torch==$version.*" numpy >"$log" 2>&1 || { rm -rf "$folder"; without "$(tail -n 1 "$log")"; }
"$folder/bin/python" -c 'import torch' >"$log" 2>&1 || { rm -rf "$folder"; without "it does not start on this machine: $(tail -n 1 "$log")"; }
touch "$folder/.done"

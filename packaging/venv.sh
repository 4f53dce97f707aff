#!/usr/bin/env bash
# Prints the folder of a virtual environment with the packages of a requirements file, and makes it if it is not there. It is kept in the user's
# cache, under a name that depends on the file. Without a network it prints the reason and fails with status 3: what needs it is skipped.
#   packaging/venv.sh <requirements file> [folder of packages that are there already]
set -uo pipefail
requirements=$1
name=$(basename "$requirements" .txt)-$({ cat "$requirements" && printf '%s' "${2:-}"; } | sha256sum | cut -c1-12)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/headroom/$name
without() { rm -rf "$folder"; echo "$1" >&2; exit 3; }

mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock" # another checkout may be making it
flock -w 1200 9 || { echo "another process has been making $folder for 20 minutes" >&2; exit 3; }
if [ ! -e "$folder/.done" ] || ! "$folder/bin/python" -c '' 2>/dev/null; then
	rm -rf "$folder"
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	python3 -m venv "$folder" >"$log" 2>&1 || without "python3 -m venv fails (on Debian: apt-get install python3-venv)"
	[ -z "${2:-}" ] || echo "$2" >"$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')/packages.pth"
	timeout --foreground 1200 "$folder/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 -r "$requirements" >"$log" 2>&1 ||
		without "pip cannot install $requirements: $(tail -n 1 "$log")"
	touch "$folder/.done"
fi
echo "$folder"

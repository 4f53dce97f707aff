#!/usr/bin/env bash
# `make test` prints each test as soon as it ends, also into a pipe. A script that prints one test and then waits replaces ctest.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/go"
cat >"$folder/ctest" <<'SCRIPT'
#!/usr/bin/env bash
echo "    Start 1: unit.first"
echo "1/2 Test #1: unit.first ....   Passed    0.01 sec"
read -r _ <"$(dirname "$0")/go"
echo "2/2 Test #2: unit.second ...   Passed    0.01 sec"
SCRIPT
chmod +x "$folder/ctest"

wrapper=()
. tools/lib.sh
PATH="$folder:$PATH"
exec 3< <(run_ctest nowhere)
# The limit only matters for a failing test; a passing one does not wait.
read -r -t 20 line <&3 || { echo "FAILED: nothing was told while the second test ran"; echo >"$folder/go"; exit 1; }
[[ $line == "1/2 Test #1: unit.first"* ]] || { echo "FAILED: told '$line'"; exit 1; }
echo >"$folder/go"
read -r line <&3
[[ $line == "2/2 Test #2: unit.second"* ]] || { echo "FAILED: told '$line'"; exit 1; }
echo ok

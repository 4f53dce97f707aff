#!/usr/bin/env bash
# The examples run out of memory and report it in each of their ways; the plain loop over the log reads it unchanged.
set -euo pipefail
cd "$(dirname "$0")/../.."
example=$(dirname "$HEADROOM_COMMAND")/examples/oom_report

fail() { echo "FAILED: $*" >&2; exit 1; }

text=$("$example")
for part in "Out of memory" "Held by tag" "activations" "layer_" "Operations before it" "FAILED"; do
	grep -qF -- "$part" <<<"$text" || fail "no '$part' in the text"
done

lines=$("$example" --log | python3 examples/read_log.py)
[ "$(tail -n 1 <<<"$lines" | grep -c 'Dtype: float32, Operation: ')" = 1 ] || fail "the last line is: $(tail -n 1 <<<"$lines")"
! "$example" --log | grep -q '"action":"free"' || fail "frees are in the log"
! "$(dirname "$example")/oom_run" --log | grep -q '"action":"free"' || fail "frees are in the log of the run"
[ "$(wc -l <<<"$lines")" -ge 20 ] || fail "only $(wc -l <<<"$lines") lines"

# A failed run leaves the same kind of log in its metadata.
run=$(dirname "$example")/oom_run
lines=$("$run" --log | python3 examples/read_log.py)
[ "$(wc -l <<<"$lines")" -ge 20 ] && grep -q 'Dtype: float32, Operation: matmul' <<<"$lines" || fail "the run's log is: $lines"
text=$("$run")
[ "$(grep -c '^OOM Error: ' <<<"$text")" = 2 ] || fail "the run says: $text"

# The same report through a file, drawn by the command if it can read JSON.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
HEADROOM_OOM_REPORT="$folder/oom-%p.json" "$example" >/dev/null
set -- "$folder"/oom-*.json
[ $# = 1 ] && [ -s "$1" ] || fail "no report file: $*"
[ "$(stat -c %a "$1")" = 600 ] || fail "mode $(stat -c %a "$1")"
python3 tests/oom/schema.py "$1" || fail "the file does not fit the schema"
HEADROOM_OOM_REPORT=stderr "$example" 2>"$folder/stderr" >/dev/null
grep -q "Out of memory" "$folder/stderr" || fail "nothing on stderr"
if drawn=$("$HEADROOM_COMMAND" oom "$1" 2>&1); then
	grep -qF "Held by tag" <<<"$drawn" || fail "headroom oom draws: $drawn"
else
	grep -q "jansson" <<<"$drawn" || fail "headroom oom: $drawn"
fi
echo ok

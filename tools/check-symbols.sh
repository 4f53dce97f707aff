#!/usr/bin/env bash
# Checks what the shared library exports and what it imports.
#   tools/check-symbols.sh <build folder>
set -uo pipefail
library=${1:-build}/libheadroom.so
rc=0
complain() { echo "check-symbols: $1" >&2; rc=1; }
[ -f "$library" ] || { complain "$library is not there"; exit 1; }

# Only public names are exported: hr_<object>_<verb>.
exported=$(nm -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//')
[ -n "$exported" ] || complain "nothing is exported"
bad=$(grep -vE '^hr_[a-z][a-z0-9_]*$' <<<"$exported")
[ -z "$bad" ] || complain "exported, but not public:"$'\n'"$bad"

# All public names are exported: everything that a header declares with HR_API.
declared=$(cat include/*.h | tr '\n' ' ' | grep -oE 'HR_API [^;]*;' | grep -oE '\bhr_[a-z0-9_]+\(' | tr -d '(' | sort -u)
missing=$(comm -23 <(echo "$declared") <(sort -u <<<"$exported"))
[ -z "$missing" ] || complain "declared in a public header, but not exported:"$'\n'"$missing"
extra=$(comm -13 <(echo "$declared") <(sort -u <<<"$exported"))
[ -z "$extra" ] || complain "exported, but in no public header:"$'\n'"$extra"

# The library depends on libc alone, of which libm is a part.
bad=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so|libm\.so|ld-linux)')
[ -z "$bad" ] || complain "needs more than libc: $bad"

# Thread-local memory uses the initial-exec model. About 1.6 KiB of it is left for libraries loaded with dlopen.
tls=$(readelf -lW "$library" | awk '$1 == "TLS" { print $6 }')
[ $((${tls:-0})) -le 1024 ] || complain "$((tls)) bytes of thread-local memory; at most 1024, or dlopen may fail"

# The library never prints and never exits.
bad=$(nm -D --undefined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | grep -xE '_?exit|_Exit|quick_exit|printf|vprintf|puts|putchar|fprintf|vfprintf|fputs|perror|stdout|stderr|__printf_chk|__fprintf_chk')
[ -z "$bad" ] || complain "prints or exits: $bad"

[ $rc -ne 0 ] || echo "symbols: $(wc -l <<<"$exported") exported, $((${tls:-0})) bytes of thread-local memory"
exit $rc

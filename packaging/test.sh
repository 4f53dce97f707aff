#!/usr/bin/env bash
# Runs the stages of `make package-test`, or the given ones, and prints a summary with one line for each. The packages are left in build/packages.
#   packaging/test.sh [dist] [wheel] [debian] [sbom] [clang] [arm64] [site]
#
# A stage whose tools cannot be installed, for example without a network, says SKIPPED and why. The other stages run even if one fails.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh
out=build/packages

say() { echo "-- $stage: $*"; }
source_archive() { ls "$out"/headroom-*.tar.gz 2>/dev/null; }

# The same commit gives the same bytes.
stage_dist() {
	rm -rf "$out" && mkdir -p "$out"
	git -c safe.directory="$PWD" rev-parse HEAD >/dev/null 2>&1 || { say "SKIPPED: this is no git checkout, or there is no git"; return 0; }
	local again
	again=$(mktemp -d)
	packaging/dist.py "$out" && packaging/dist.py "$again" >/dev/null && cmp "$out"/*.tar.gz "$again"/*.tar.gz
	local rc=$?
	rm -rf "$again"
	[ $rc -eq 0 ] && say "the same bytes twice"
	return $rc
}

need_archive() { source_archive >/dev/null || { say "SKIPPED: there is no source archive (the stage dist makes it)"; return 1; }; }

stage_wheel() {
	need_archive || return 0
	packaging/wheel.sh "$(source_archive)" "$out"
}

stage_debian() {
	need_archive || return 0
	local tool
	for tool in dpkg-buildpackage dh dh_python3 lintian fakeroot; do
		command -v $tool >/dev/null || { say "SKIPPED: there is no $tool"; return 0; }
	done
	dpkg-checkbuilddeps packaging/debian/control 2>"$out/missing" || { say "SKIPPED: $(cat "$out/missing")"; rm -f "$out/missing"; return 0; }
	rm -f "$out/missing"
	packaging/debian.sh "$(source_archive)" "$out"
}

stage_sbom() {
	need_archive || return 0
	python3 packaging/sbom.py "$out" "$(source_archive)" || return 1
	local tools why
	why=$(mktemp)
	tools=$(packaging/venv.sh packaging/tools.txt 2>"$why") || { say "validation SKIPPED: $(cat "$why")"; rm -f "$why"; return 0; }
	rm -f "$why"
	"$tools/bin/pyspdxtools" -i "$out"/headroom-*.spdx.json && say "valid"
}

# The product as clang compiles it, with the checks of its symbols; `make test` has the tests under clang, with sanitizers.
stage_clang() {
	command -v clang >/dev/null || { say "SKIPPED: there is no clang"; return 0; }
	configure build-clang clang -DHEADROOM_WERROR=ON && build build-clang product && tools/check-symbols.sh build-clang && tests/install/run.sh build-clang
}

stage_arm64() { packaging/arm64.sh; }

# The documentation's site; broken links and anchors are errors.
stage_site() {
	configure build "" && build build headroom_cli || return 1
	local rc=0
	packaging/site.sh build || rc=$?
	[ $rc -ne 3 ] || { say "SKIPPED: MkDocs cannot be installed"; return 0; }
	return $rc
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(dist wheel debian sbom clang arm64 site)
start=$SECONDS
summary=() failed=0
for stage in "${stages[@]}"; do
	echo "== $stage"
	begin=$SECONDS
	"stage_$stage" 2>&1 | tee "$log"
	if [ "${PIPESTATUS[0]}" = 0 ]; then result=ok; else result=FAILED failed=1; fi
	summary+=("$(printf '%-8s %-6s %4d s' "$stage" "$result" $((SECONDS - begin)))$(sed -n 's/^-- .*\(SKIPPED.*\)/   \1/p' "$log" | tr -d '\n')")
	echo "== ${summary[-1]}"
done
echo
printf '%s\n' "${summary[@]}"
printf '%-8s %-6s %4d s\n' total "$([ $failed = 0 ] && echo ok || echo FAILED)" $((SECONDS - start))
exit $failed

#!/usr/bin/env bash
# Builds a wheel from the source archive, as `pip install headroom-VERSION.tar.gz` does, gives it the tag of this machine's C library, and tries it in
# fresh virtual environments: alone, and beside PyTorch, if the tests of the plug-in have installed it.
#   packaging/wheel.sh <source archive> <folder for the wheel>
#
# libjansson is put into the wheel, because it is not on every machine (packaging/THIRD-PARTY.txt). All else is in the C library or zlib.
set -euo pipefail
cd "$(dirname "$0")/.."
archive=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "wheel: $1" >&2; exit 1; }
# quietly <command>...: prints its output only if it fails
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; fail "failed: $*"; }; }

tools=$(packaging/venv.sh packaging/tools.txt 2>"$work/why") || { echo "-- wheel: SKIPPED: $(cat "$work/why")"; exit 0; }
version=$(basename "$archive" .tar.gz)
version=${version#headroom-}
echo "-- wheel: building it from the source archive"
PATH=$tools/bin:$PATH quietly "$tools/bin/pip" wheel --no-deps --no-build-isolation --disable-pip-version-check -w "$work/plain" "$archive"
# The C library that it was built and tested with.
platform=manylinux_$(getconf GNU_LIBC_VERSION | sed 's/.* //; s/\./_/')_$(uname -m)
rm -f "$out"/headroom-*.whl
PATH=$tools/bin:$PATH quietly "$tools/bin/auditwheel" repair --only-plat --plat "$platform" -w "$out" "$work"/plain/*.whl
wheel=$(ls "$out"/headroom-*.whl)
[ "$(basename "$wheel")" = "headroom-$version-py3-none-$platform.whl" ] || fail "the wheel is named $(basename "$wheel")"

echo "-- wheel: $(basename "$wheel") in a fresh environment"
python3 -m venv "$work/env"
quietly "$work/env/bin/pip" install --no-index --no-deps --disable-pip-version-check "$wheel"
cd "$work" # nothing of the source tree
export HEADROOM_CUDA=0
unset PYTHONPATH HEADROOM_LIBRARY_DIR HEADROOM_COMMAND
[ "$("$work/env/bin/headroom" --version)" = "headroom $version" ] || fail "headroom --version says $("$work/env/bin/headroom" --version)"
[ "$("$work/env/bin/python" -c 'import headroom; print(headroom.__version__, headroom.memory_info("GPU:0")["peak"])')" = "$version 0" ] || fail "the Python package does not work"
[ "$("$work/env/bin/python" -m headroom --version)" = "headroom $version" ] || fail "python -m headroom does not run the command"
quietly "$work/env/bin/python" -c "import importlib.metadata as m, importlib.util as u; assert all(u.find_spec(p.value) for p in m.entry_points(group='pytest11')), 'the plug-in for pytest'"
quietly "$work/env/bin/headroom" demo --steps 2 --out demo
quietly "$work/env/bin/headroom" report demo/training.hrt --export xplane --out logs
"$work/env/bin/headroom" run -- env | grep '^LD_PRELOAD=.*/libheadroom_cuda.so$' >/dev/null || fail "headroom run does not find libheadroom_cuda.so"

torch=$(ls -d "${XDG_CACHE_HOME:-$HOME/.cache}/headroom/torch-${TORCH_VERSION:-2.11}"/lib/python3*/site-packages 2>/dev/null | head -n 1 || true)
if [ "${TORCH:-1}" != 0 ] && [ -n "$torch" ] && [ -e "$torch/../../../.done" ]; then
	echo "-- wheel: the first out-of-memory report of a PyTorch program, as in README.md"
	echo "$torch" >"$("$work/env/bin/python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
	cp "$OLDPWD/examples/train_torch.py" train.py
	export PATH=$work/env/bin:$PATH
	! headroom run --limit 96MiB --device cpu -- python train.py >log 2>&1 || fail "a program that needs more than its limit succeeds"
	grep -q "tags: weights 32.0 MiB, gradients 32.0 MiB, optimizer" log || { cat log >&2; fail "the error does not say what holds the memory"; }
	quietly headroom run --limit 96MiB --device cpu --lms -- python train.py
else
	echo "-- wheel: SKIPPED with PyTorch: it is not installed (tools/torch.sh)"
fi
echo "-- wheel: ok"

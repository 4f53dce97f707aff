#!/usr/bin/env bash
# Runs the tests of the Python package with the real packages of others: Jupyter, pytest, PyTorch Lightning, transformers, TensorBoard, Weights & Biases. They
# are too large for `make test` (0.5 GB beside PyTorch), which skips these tests without them. The packages are installed once, into the user's cache. Without a
# network, or without PyTorch, it says why and runs nothing. `make test` must have built build/.
#   tools/test-python-tools.sh [argument of ctest]...
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

skip() { echo "test-python-tools: SKIPPED: $1"; exit 0; }

tools/torch.sh
torch=$(ls -d "${XDG_CACHE_HOME:-$HOME/.cache}/headroom/torch-${TORCH_VERSION:-2.11}"/lib/python3*/site-packages 2>/dev/null | head -n 1 || true)
[ -n "$torch" ] && [ -e "$torch/../../../.done" ] || skip "PyTorch is not installed (tools/torch.sh)"
why=$(mktemp)
trap 'rm -f "$why"' EXIT
folder=$(packaging/venv.sh tools/python-tools.txt "$torch" 2>"$why") || skip "$(cat "$why")"

wrapper=()
configure build ""
build build
HEADROOM_TOOLS_PYTHON=$folder/bin/python run_ctest build -R '^integrations\.' "$@"

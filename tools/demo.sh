#!/usr/bin/env bash
# What `make demo` shows: a recorded training run replayed through the allocator, the least memory it runs in, its speed, its statistics,
# and a picture of the regions.
set -euo pipefail
cd "$(dirname "$0")/.."
command="build/headroom replay traces/gpt2.csv.gz --find-limit --picture"
printf 'GPT-2 medium, training on one GPU: every request for memory, as PyTorch recorded it.\n\n$ %s\n\n' "$command"
exec $command

#!/usr/bin/env bash
# What `make demo` shows: a recorded training run replayed through the allocator, its statistics, and a picture of the regions.
set -euo pipefail
cd "$(dirname "$0")/.."
exec build/headroom replay traces/gpt2.csv.gz --picture

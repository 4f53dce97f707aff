#!/usr/bin/env bash
# Writes the manual pages and the shell completion of a command into a folder.
#   tools/pages.sh <command headroom> <folder>
set -euo pipefail
command=$1 folder=$2
rm -rf "$folder"
mkdir -p "$folder/man"
"$command" help --man >"$folder/man/headroom.1"
for name in $("$command" help | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p' | grep -vx help); do
	"$command" help --man "$name" >"$folder/man/headroom-$name.1"
done
for shell in bash zsh fish; do "$command" help --completion $shell >"$folder/headroom.$shell"; done
touch "$folder/.done"

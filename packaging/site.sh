#!/usr/bin/env bash
# Builds the documentation's site in build/site/html. A broken link or anchor, and a page that mkdocs.yml does not list, is an error. Without
# MkDocs, which packaging/venv.sh installs, prints the reason and exits with 3.
#   packaging/site.sh <build folder>
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(packaging/venv.sh packaging/site.txt) || exit 3
python3 tools/site-pages.py "$1/headroom" build/site/pages
# The theme would print advice about its own future.
NO_MKDOCS_2_WARNING=1 "$folder/bin/mkdocs" build --strict --clean 2>&1 | sed '/^INFO /d'
echo "the site: build/site/html/index.html, $(find build/site/html -name '*.html' | wc -l) pages"

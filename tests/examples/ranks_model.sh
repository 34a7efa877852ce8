#!/bin/sh
# ranks_model.sh SOURCE: the tables of docs/ranks_model.md are those that bench/ranks_model.py makes, and its formulas are those of rings.
command -v python3 >/dev/null || { echo "skipped: no python3 here"; exit 77; }
exec python3 -B "$1/bench/ranks_model.py" --check "$1/docs/ranks_model.md"

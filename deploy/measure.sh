#!/bin/sh
# Measures this machine, with a GPU or without: deploy/measure.sh PROMPTS [OUT]
#
# PROMPTS: JSON lines with prompt, and optional category. OUT: folder for the reports (default: results).
# PACELINE names the command (default: .venv/bin/paceline, which `make install` makes), PER_CATEGORY the prompts of each
# category (1), TOKENS those of a reply (64), ROUNDS the runs of every pass (12). A bar that is missed stops nothing.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: deploy/measure.sh PROMPTS [OUT]" >&2
    exit 2
fi
prompts=$1
out=${2:-results}
paceline=${PACELINE:-"$(dirname "$0")/../.venv/bin/paceline"}
per_category=${PER_CATEGORY:-1}
tokens=${TOKENS:-64}
rounds=${ROUNDS:-12}

if [ ! -r "$prompts" ]; then
    echo "measure.sh: $prompts cannot be read" >&2
    exit 2
fi
mkdir -p "$out"
{
    uname -a
    if command -v lscpu >/dev/null; then lscpu; fi
    if command -v nvidia-smi >/dev/null; then nvidia-smi; fi
} >"$out/machine.txt"

missed=0
study() {
    echo "measure.sh: study $*" >&2
    status=0
    "$paceline" study "$@" --out "$out" >>"$out/log.txt" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        echo "measure.sh: exit status $status, see $out/log.txt (1: a bar is missed, or an error that is named there)" >&2
        missed=1
    fi
}

"$paceline" models fetch smollm2-135m-instruct
study overhead
study pass --rounds "$rounds"
study peers --prompts "$prompts" --per-category "$per_category" --tokens "$tokens"
study threads --prompts "$prompts" --per-category "$per_category" --tokens "$tokens"
exit "$missed"

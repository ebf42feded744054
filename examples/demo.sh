#!/bin/sh
# Pushes examples/tiny-lm, follows it to its end, then shows the job and its checkpoints.
# `make demo` calls this with .venv/bin first on PATH; it works with any prefect-bt on PATH.
set -eu

cd "$(dirname "$0")/.."
pushed=$(mktemp)
trap 'rm -f "$pushed"' EXIT

# With -o json, stdout holds the job as one JSON document; the log goes to stderr.
status=0
prefect-bt push examples/tiny-lm/config.py --wait --tail -o json >"$pushed" || status=$?
[ -s "$pushed" ] || exit "$status"
job_id=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["id"])' "$pushed")

echo
echo "demo: job $job_id"
prefect-bt view --job-id "$job_id"
prefect-bt checkpoints list --job-id "$job_id"
exit "$status"

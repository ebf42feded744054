#!/bin/sh
# Push examples/tiny-lm and follow it to its end. Show the job, its checkpoints and its page in the
# Prefect UI. Serve the newest checkpoint and ask it for a story. `make demo` calls this script with
# .venv/bin first on PATH; any prefect-bt on PATH works.
set -eu

cd "$(dirname "$0")/.."
pushed=$(mktemp)
trap 'rm -f "$pushed"' EXIT

# With -o json, stdout is the job as one JSON document, and the log is on stderr.
status=0
prefect-bt push examples/tiny-lm/config.py --wait --tail -o json >"$pushed" || status=$?
[ -s "$pushed" ] || exit "$status"

field() { python -c 'import json, sys; print(json.load(open(sys.argv[1])).get(sys.argv[2]) or "")' "$pushed" "$1"; }
job_id=$(field id)
page=$(field flow_run_url)

echo
echo "demo: the job"
prefect-bt view --job-id "$job_id"
echo
echo "demo: its checkpoints"
prefect-bt checkpoints list --job-id "$job_id"
echo
if [ -n "$page" ]; then
  echo "demo: its page in the Prefect UI is $page"
else
  echo "demo: no Prefect server was up, so it has no page in a UI. To see one: \`prefect-bt up\`, then \`make demo\` again"
  echo "demo: (prefect-bt is in .venv/bin: . .venv/bin/activate)"
fi
[ "$status" = 0 ] || exit "$status"

echo
echo "demo: serving its newest checkpoint (half a minute)"
prefect-bt deploy_checkpoints --job-id "$job_id" --checkpoint latest --model-name tiny-lm \
  --accelerator none --hf-secret none
echo
echo "demo: a question, and its answer"
prefect-bt deployments view tiny-lm -o json | python -c '
import json, sys
from urllib.request import ProxyHandler, Request, build_opener

messages = [{"role": "user", "content": "Tell me a story: Lily and the blue boat"}]
body = {"model": "tiny-lm", "messages": messages, "max_tokens": 120}
url = json.load(sys.stdin)["address"] + "/chat/completions"
request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
with build_opener(ProxyHandler({})).open(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
' || status=$?
echo
prefect-bt deployments stop tiny-lm --yes
exit "$status"

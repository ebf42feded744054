"""From `prefect-bt push --substrate kubernetes` to the first line inside the pod.

`python benchmarks/start_in_kubernetes.py [-o json] [--runs N] --image NAME`. The peer is what
anybody would pay: an empty Prefect flow (benchmarks/start.py), and after it `kubectl create job` of
the same image until its first line is read. Both are fresh processes against the same warm server
and cluster, taken in turn. The environment is that of a push to Kubernetes (docs/kubernetes.md):
KUBECONFIG, PREFECT_BT_STORE and its credentials, PREFECT_BT_KUBERNETES_AGENT_IMAGE. The machines of
the cluster have both images.

The goal is on the difference: at most two seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import start
from figures import Goal, alone, as_json, as_table, busy, paired

from prefect_bt.object_keys import log_key
from prefect_bt.object_store import open_store

CONFIG = start.CONFIG.replace('base_image="none"', "base_image={image!r}")
POLL_INTERVAL = 0.05
PASSED_ON = ("AWS_", "GOOGLE_", "AZURE_", "KUBE", "PREFECT_BT_KUBERNETES", "PREFECT_BT_STORE")


def ours(root: Path, environment: dict[str, str]) -> float:
    """Seconds from the start of `push` to the stamp of the command's first line."""
    began = time.time()
    words = start.cli("push", str(root / "work" / "config.py"), "--wait", "-o", "json")
    pushed = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    job = json.loads(pushed.stdout)
    key = log_key(job["training_project_id"], job["id"], 0, 0)
    log = open_store(environment["PREFECT_BT_STORE"]).get(key).decode()
    first = next(line for line in log.splitlines() if line.endswith(" FIRST-LINE"))
    return int(first.split()[0]) / 1e9 - began


def kubectl_job(image: str) -> float:
    """Seconds until the Job's own first line can be read."""
    name, began = f"bench-{uuid.uuid4().hex[:8]}", time.time()
    script = ["--", "/bin/sh", "-c", "echo FIRST-LINE"]
    kubectl("create", "job", name, f"--image={image}", *script)
    try:
        while "FIRST-LINE" not in kubectl("logs", f"job/{name}", check=False):
            time.sleep(POLL_INTERVAL)
        return time.time() - began
    finally:
        kubectl("delete", "job", name)


def kubectl(*words: str, check: bool = True) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=check)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--image", required=True)
    given = parser.parse_args()
    note = f"{os.cpu_count()} cores, {busy():.0%} of them busy before the first run"
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
        root = Path(folder)
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        environment = {**start.prepare(root), **passed, "PREFECT_BT_SUBSTRATE": "kubernetes"}
        (root / "work" / "config.py").write_text(CONFIG.format(image=given.image))
        up, down = start.cli("up", "--no-worker"), start.cli("down")
        subprocess.run(up, env=environment, check=True, capture_output=True)
        try:
            seen = [
                (
                    ours(root, environment),
                    start.peer(root, environment),
                    kubectl_job(given.image),
                )
                for _ in range(given.runs + 1)
            ][1:]
        finally:
            subprocess.run(down, env=environment, check=False, capture_output=True)
    flow, job = (statistics.median(one[which] for one in seen) for which in (1, 2))
    rows = [
        paired(
            "kubernetes_first_line",
            "s",
            [(ours, flow + job) for ours, flow, job in seen],
            peer="an empty flow, then kubectl create job",
            extra={"empty_flow_s": flow, "kubectl_create_job_s": job},
        ),
        alone(
            "kubernetes_more_s",
            "s",
            [ours - flow - job for ours, flow, job in seen],
            what="ours less both of them",
            goal=Goal("<= 2.0", lambda more: more <= 2.0),
        ),
    ]
    shown = as_json(rows) if given.output == "json" else f"{as_table(rows)}\n* {note}"
    print(shown)


if __name__ == "__main__":
    main()

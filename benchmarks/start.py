"""From `prefect-bt push` to the first line of the user's command, beside a bare Prefect flow.

`python benchmarks/start.py [--json] [--runs N]`. Both sides are a fresh process against the same
warm local Prefect server, taken in turn. Ours: start of the push process to the stamp on the first
line that the job's command prints. The peer: start of a process that runs a flow with the same
number of empty tasks as our flow has begun by then, to the moment the last one's body runs.

The issue's bound is on the difference (ours - peer <= 0.5 s), which the table prints too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prefect_bt.local_server.password import CLIENT_VARIABLE, read_auth

TASKS = 5
"""accept-job, training, attempt, provision, run-node."""

CONFIG = """
from truss_train import definitions as d
p = d.TrainingProject(name="bench", job=d.TrainingJob(
    image=d.Image(base_image="none"), compute=d.Compute(cpu_count=1, memory="64Mi"),
    runtime=d.Runtime(start_commands=["echo FIRST-LINE"],
                      checkpointing_config=d.CheckpointingConfig(enabled=True))))
"""

PEER = f"""
import time
from prefect import flow, task
@task
def empty(): return time.time()
@flow
def bare():
    for _ in range({TASKS}): last = empty()
    print("LAST", last, flush=True)
bare()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
        root = Path(folder)
        environment = prepare(root)
        subprocess.run(cli("up", "--no-worker"), env=environment, check=True, capture_output=True)
        try:
            pairs = [measure(root, environment) for _ in range(arguments.runs + 1)][1:]
        finally:
            subprocess.run(cli("down"), env=environment, check=False, capture_output=True)
    report(pairs, as_json=arguments.json)


def cli(*words: str) -> list[str]:
    return [sys.executable, "-m", "prefect_bt.cli.entry", *words]


def prepare(root: Path) -> dict[str, str]:
    (root / "work").mkdir()
    (root / "work" / "config.py").write_text(CONFIG)
    (root / "peer.py").write_text(PEER)
    keep = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    return {
        **keep,
        "PREFECT_HOME": str(root / "prefect"),
        "PREFECT_BT_STORE": str(root / "store"),
        "PREFECT_BT_STATE_DIR": str(root / "state"),
        "PREFECT_BT_SERVER_PORT": "18471",
    }


def measure(root: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of one run of each, in turn."""
    return ours(root, environment), peer(root, environment)


def ours(root: Path, environment: dict[str, str]) -> float:
    began = time.time()
    pushed = subprocess.run(
        cli("push", str(root / "work" / "config.py"), "--wait", "-o", "json"),
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    job = json.loads(pushed.stdout)
    pattern = f"training_projects/*/jobs/{job['id']}/attempts/0000/logs/rank-0.log"
    log = next((root / "store").glob(pattern)).read_text()
    first = next(line for line in log.splitlines() if line.endswith(" FIRST-LINE"))
    return int(first.split()[0]) / 1e9 - began


def peer(root: Path, environment: dict[str, str]) -> float:
    with_api = {
        **environment,
        "PREFECT_API_URL": "http://127.0.0.1:18471/api",
        CLIENT_VARIABLE: read_auth(root / "state"),
    }
    began = time.time()
    ran = subprocess.run(
        [sys.executable, str(root / "peer.py")],
        env=with_api,
        check=True,
        capture_output=True,
        text=True,
    )
    last = next(line for line in ran.stdout.splitlines() if line.startswith("LAST "))
    return float(last.split()[1]) - began


def report(pairs: list[tuple[float, float]], *, as_json: bool) -> None:
    mine = statistics.median(a for a, _ in pairs)
    other = statistics.median(b for _, b in pairs)
    row = {
        "figure": "push_to_first_line",
        "unit": "s",
        "ours": round(mine, 3),
        "peer": round(other, 3),
        "peer_name": f"Prefect flow, {TASKS} empty tasks",
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
    }
    if as_json:
        print(json.dumps([row]))
        return
    extra = statistics.median(a - b for a, b in pairs)
    print(f"{'figure':<20} {'ours':>8} {'peer':>8} {'ratio':>7}  peer")
    print(
        f"{row['figure']:<20} {mine:>7.2f}s {other:>7.2f}s {row['ratio']:>7.2f}  {row['peer_name']}"
    )
    print(f"ours - peer, median of {len(pairs)} pairs: {extra:+.2f} s")


if __name__ == "__main__":
    main()

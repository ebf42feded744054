"""Wall time of commands through a server of the HTTP API, beside the same commands from its store.

`python benchmarks/http_api.py [--jobs 1000] [--runs 10]`. Each figure is the median of child
processes, taken in turn; `GET jobs` is one request of all jobs over a connection that is open.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.listing import CLI, PROJECT, write_jobs

PORT = 18533


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {
            "HOME": name,
            "PREFECT_BT_STORE": f"{name}/store",
            "PREFECT_BT_STATE_DIR": f"{name}/state",
        }
        records = write_jobs(folder / "store", arguments.jobs)
        subprocess.run(
            [*CLI, "view", "--all"], env=environment, stdout=subprocess.DEVNULL, check=True
        )
        key = subprocess.check_output(
            [*CLI, "api-key", "create", "bench"], env=environment, text=True
        )
        key = next(word for word in key.split() if word.startswith("prefect-bt-"))
        server = subprocess.Popen([*CLI, "api", "--port", str(PORT)], env=environment)
        try:
            url = f"http://127.0.0.1:{PORT}"
            _wait_for(url)
            remote = environment | {"PREFECT_BT_API_URL": url, "PREFECT_BT_API_KEY": key}
            lines = ["view", f"view --job-id {records[-1].id}", f"view --project {PROJECT} -o json"]
            for line in lines:
                times: dict[str, list[float]] = {"store": [], "server": []}
                for _ in range(arguments.runs):
                    times["store"].append(_time(line, environment))
                    times["server"].append(_time(line, remote))
                store, through = (statistics.median(one) * 1e3 for one in times.values())
                print(f"{line:<40} store {store:6.0f} ms  server {through:6.0f} ms")
            with httpx.Client(headers={"Authorization": f"Api-Key {key}"}, timeout=60) as client:
                each: list[float] = []
                for _ in range(arguments.runs):
                    began = time.perf_counter()
                    client.get(f"{url}/prefect-bt/v1/jobs").raise_for_status()
                    each.append(time.perf_counter() - began)
            print(f"GET jobs ({len(records)}) {statistics.median(each) * 1e3:6.0f} ms")
        finally:
            server.terminate()
            server.wait()


def _time(line: str, environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([*CLI, *line.split()], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            httpx.get(f"{url}/health")
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"{url} does not answer.")


if __name__ == "__main__":
    main()

"""Gangs of many nodes on one host: start, failure, retry, and what they ask of Prefect's API.

`python benchmarks/gangs.py [-o json] [--nodes 64] [--runs N]`. Everything goes the real way: push,
supervisor, flow, one process tree a node, against a warm local server. The times are those that the
nodes wrote down themselves, read from the job's record:

    start       the attempt is begun -> the last node's command runs
    fail        one rank exits with 1 -> the last of the others has ended
    retry       the same -> the last node's command runs in the next attempt
    calls       requests to the API, counted by a proxy, for a job of 10 s and one of 30 s;
                states of task runs are no requests: Prefect sends them as events, over one socket

Beside start stands the floor: as many `python -c pass` as there are nodes, started at once. A node
is two such processes and a shell.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from figures import Goal, Row, alone, as_json, as_table, busy, paired

from prefect_bt.host.processes import list_processes, read_command_line
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import Outcome

PORT = 18493
CONFIG = """
from truss_train import definitions as d
p = d.TrainingProject(name="bench", job=d.TrainingJob(
    image=d.Image(base_image="none"), compute=d.Compute(node_count={nodes}, memory="8Mi"),
    runtime=d.Runtime(start_commands=[{command!r}],
                      checkpointing_config=d.CheckpointingConfig(enabled=False))))
"""
FAILING = """sh -c 'test $BT_RETRY_COUNT = 1 && exec sleep 2
test $BT_NODE_RANK = {last} || exec sleep 600
sleep {seconds}; exit 1'"""
REQUEST = re.compile(rb"(?:^|\n)(GET|POST|PUT|PATCH|DELETE) (\S+) HTTP/1\.1\r\n")
LONGER = 20.0
"""Seconds between the two jobs whose requests are compared."""


class CountingProxy:
    """Hands every byte on, and counts the requests among them by method and path.

    Each request waits for `delay` seconds, as one to a server far away does.
    """

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self.counts: Counter[str] = Counter()
        counts = self.counts

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    back = threading.Thread(target=pump, args=(server, self.request), daemon=True)
                    back.start()
                    pump(self.request, server, counts, delay)
                    back.join(5)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, allow_reuse_address = True, True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def pump(
    source: socket.socket,
    target: socket.socket,
    counts: Counter[str] | None = None,
    delay: float = 0.0,
) -> None:
    try:
        while data := source.recv(1 << 16):
            if counts is not None and (requests := REQUEST.findall(data)):
                for method, path in requests:
                    counts[f"{method.decode()} {shape(path.decode())}"] += 1
                time.sleep(delay)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def shape(path: str) -> str:
    """Without ids and queries."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<id>", path.partition("?")[0])


class Bench:
    """A store, a state folder and a server of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        keep = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
        self.environment = {
            **keep,
            "PREFECT_HOME": str(root / "prefect"),
            "PREFECT_BT_STORE": str(root / "store"),
            "PREFECT_BT_STATE_DIR": str(root / "state"),
            "PREFECT_BT_SERVER_PORT": str(PORT),
        }

    @property
    def ledger(self) -> Ledger:
        return open_ledger(str(self.root / "store"))

    def run(self, *words: str, **extra: str) -> str:
        command = [sys.executable, "-m", "prefect_bt.cli.entry", *words]
        environment = {**self.environment, **extra}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=900
        )
        if not done.stdout:
            raise SystemExit(f"{words} said nothing:\n{done.stderr}")
        return done.stdout

    def push(self, nodes: int, command: str, *words: str, **extra: str) -> list[Outcome]:
        """The outcomes of a job, once it is over."""
        config = self.root / f"config-{time.monotonic_ns()}" / "config.py"
        config.parent.mkdir()
        config.write_text(CONFIG.format(nodes=nodes, command=command))
        told = self.run("push", str(config), "--wait", "-o", "json", *words, **extra)
        job_id = json.loads(told)["id"]
        # The job is over before its flow has told Prefect so.
        while any(job_id in read_command_line(pid) for pid in list_processes()):
            time.sleep(0.1)
        return self.ledger.list_outcomes(job_id)

    def began(self, outcome: Outcome) -> float:
        """When the attempt was begun, before anything was launched."""
        job = next(
            job for job in self.ledger.list_jobs() if outcome in self.ledger.list_outcomes(job.id)
        )
        return self.ledger.list_attempts(job.id)[outcome.attempt].at


@contextmanager
def serving() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
        bench = Bench(Path(folder))
        bench.run("up", "--no-worker")
        try:
            yield bench
        finally:
            bench.run("down", "--force")


def floor(nodes: int) -> float:
    """Seconds until as many plain Python processes have started and ended."""
    began = time.perf_counter()
    started = [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(nodes)]
    for process in started:
        process.wait()
    return time.perf_counter() - began


def measure_gang(bench: Bench, nodes: int, runs: int) -> list[Row]:
    starts, fails, retries = list[tuple[float, float]](), list[float](), list[float]()
    for _ in range(runs):
        seconds = max(6, nodes // 4)
        command = FAILING.format(last=nodes - 1, seconds=seconds)
        first, second = bench.push(nodes, command, "--retries", "1")
        started = max(node.started_at or 0.0 for node in first.nodes)
        starts.append((started - bench.began(first), floor(nodes)))
        failed = first.nodes[nodes - 1].ended_at or 0.0
        fails.append(max(node.ended_at or 0.0 for node in first.nodes) - failed)
        retries.append(max(node.started_at or 0.0 for node in second.nodes) - failed)
    name = f"gang_{nodes}"
    return [
        paired(f"{name}_start_s", "s", starts, peer=f"{nodes} x python -c pass"),
        alone(f"{name}_fail_to_stopped_s", "s", fails, what="one rank fails"),
        alone(f"{name}_retry_s", "s", retries, what="one rank fails, 1 s delay in it"),
    ]


def measure_calls(bench: Bench, nodes: int) -> list[Row]:
    """The same gang for 10 s and for 30 s, and half of it."""
    small = calls(bench, nodes // 2, 10)
    short, long = calls(bench, nodes, 10), calls(bench, nodes, 10 + LONGER)
    total, half = sum(short.values()), sum(small.values())
    grown = (sum(long.values()) - total) / LONGER
    what = f"{nodes} nodes, 10 s"
    notes = tuple(
        f"requests of {what}, then of 30 s: {path} {count}, {long[path]}"
        for path, count in (short | long).most_common(8)
    )
    flat = Goal("<= 0.5", lambda rate: rate <= 0.5)
    return [
        alone("api_calls", "calls", [total], what=what, notes=notes),
        alone(
            "api_calls_per_node",
            "calls",
            [(total - half) / (nodes - nodes // 2)],
            what=f"{nodes} nodes against {nodes // 2}",
        ),
        alone("api_calls_per_s", "1/s", [grown], what="30 s against 10 s", goal=flat),
    ]


def calls(bench: Bench, nodes: int, seconds: float) -> Counter[str]:
    proxy = CountingProxy(PORT)
    try:
        bench.push(nodes, f"sleep {seconds:.0f}", PREFECT_API_URL=proxy.url)
    finally:
        proxy.close()
    return proxy.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["gang", "calls"])
    given = parser.parse_args()
    note = f"{os.cpu_count()} cores, {busy():.0%} of them busy before the first run"
    with serving() as bench:
        rows: list[Row] = []
        if given.only != "calls":
            rows += measure_gang(bench, given.nodes, given.runs)
        if given.only != "gang":
            rows += measure_calls(bench, 16)
    if given.output == "json":
        print(as_json(rows))
    else:
        print(as_table(rows), f"* {note}", sep="\n")


if __name__ == "__main__":
    main()

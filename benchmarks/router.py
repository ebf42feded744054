"""Requests through the router of a deployment, beside the same server asked directly.

`python benchmarks/router.py [--json] [--runs N] [--seconds S]`. The server is uvicorn with an app
that answers at once, so that only the way there is measured. Both sides are taken in turn, by the
same clients: first `--clients` of them without a pause (requests a second), then a single one
(seconds a request), then one that reads a stream of 200 events (events a second).

All of it shares the cores of one machine: what the router burns is taken from server and clients.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from figures import Row, as_json, as_table, busy, paired

from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import ensure_router, stop_router
from prefect_bt.serving.router.route import Route

NAME = "bench"
EVENTS = 200
BODY = b'{"model": "checkpoint-10", "messages": [{"role": "user", "content": "hello"}]}'
SERVER = """
import sys, uvicorn
START = {"type": "http.response.start", "status": 200}
PLAIN, STREAM = [(b"content-length", b"512")], [(b"content-type", b"text/event-stream")]
async def app(scope, receive, send):
    while (await receive()).get("more_body"): pass
    if scope["path"] == "/stream":
        await send({**START, "headers": STREAM})
        for number in range(int(sys.argv[2])):
            event = {"type": "http.response.body", "body": b"data: %d\\n\\n" % number}
            await send({**event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({**START, "headers": PLAIN})
        await send({"type": "http.response.body", "body": b"x" * 512})
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", lifespan="off")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    load = busy()
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
        state, port = Path(folder), 18473
        command = [sys.executable, "-c", SERVER, str(port), str(EVENTS)]
        server = subprocess.Popen(command)
        try:
            direct = f"http://127.0.0.1:{port}"
            through = ensure_router(state, NAME, environment=os.environ)
            RouterFolder.for_deployment(state, NAME).write_route(Route(1, direct))
            ask(through)  # waits until the server accepts
            rows = figures(through, direct, arguments, note=f"{load:.0%} of the cores were busy")
        finally:
            stop_router(state, NAME, grace=0.0)
            server.kill()
            server.wait()
    print(as_json(rows) if arguments.json else as_table(rows))


def figures(through: str, direct: str, arguments: argparse.Namespace, *, note: str) -> list[Row]:
    def in_turn(measure: Callable[[str], float]) -> list[tuple[float, float]]:
        return [(measure(through), measure(direct)) for _ in range(arguments.runs + 1)][1:]

    many = in_turn(lambda at: throughput(at, arguments.seconds, arguments.clients))
    single = in_turn(lambda at: latency(at, arguments.seconds))
    streamed = in_turn(lambda at: events(at, arguments.seconds))
    added = 1000 * statistics.median(ours - theirs for ours, theirs in single)
    peer, notes = "the server itself", (note,)
    return [
        paired(
            "router_requests", "1/s", many, peer=f"{peer}, {arguments.clients} clients", notes=notes
        ),
        paired("router_latency", "s", single, peer=peer, extra={"added ms": added}, notes=notes),
        paired("router_events", "1/s", streamed, peer=peer, notes=notes),
    ]


def ask(address: str, path: str = "/v1/chat/completions") -> None:
    connection = connect(address)
    answered(connection, path)
    connection.close()


def throughput(address: str, seconds: float, clients: int) -> float:
    counts = [0] * clients
    until = time.monotonic() + seconds

    def run(number: int) -> None:
        connection = connect(address)
        while time.monotonic() < until:
            answered(connection, "/v1/chat/completions")
            counts[number] += 1
        connection.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def latency(address: str, seconds: float) -> float:
    """Median of one client's requests."""
    connection, taken = connect(address), list[float]()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        answered(connection, "/v1/chat/completions")
        taken.append(time.perf_counter() - began)
    connection.close()
    return statistics.median(taken)


def events(address: str, seconds: float) -> float:
    connection, count = connect(address), 0
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        count += answered(connection, "/stream").count(b"\n\n")
    connection.close()
    return count / (time.monotonic() - began)


def connect(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)


def answered(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("POST", path, BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {body.decode()}")
    return body


if __name__ == "__main__":
    main()

"""Logs: what a command that prints a lot costs, and how fast its log is read.

`python benchmarks/logs.py [--only NAME] [--runs N] [--scale 0.1] [-o json]`. The rival is what any
shell offers: `| cat > file` for writing, `cat` for reading. docs/logs.md says what each figure is.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Goal, Row, alone, as_json, as_table, busy, paired

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.processes import find_marked_processes
from prefect_bt.host.state_folder import NodeFolder, NodeRecord
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.line_format import format_lines
from prefect_bt.object_keys import log_key
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import (
    ImagePlan,
    NodePlan,
    Resources,
    Volume,
    VolumeKind,
    WorkspacePlan,
)
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate

TEXT = "step 123456 loss 0.1234 lr 1e-4 tokens/s 12345"
FASTEST = """
import os, sys, time
count, block = int(sys.argv[1]), b"%s\\n" * 2000
began = time.monotonic()
for _ in range(count // 2000):
    left = block
    while left:
        left = left[os.write(1, left):]
took = time.monotonic() - began
print("took", took, flush=True)
"""
PACED = """
import os, sys, time
count, rate = int(sys.argv[1]), 50_000
line = b"%s\\n"
def work():
    return sum(i * i for i in range(2000))
began, done, steps = time.monotonic(), 0, []
while done < count:
    due = min(count, int((time.monotonic() - began) * rate))
    for _ in range(done, due):
        os.write(1, line)
    done = max(done, due)
    step = time.perf_counter()
    work()
    steps.append(time.perf_counter() - step)
print("took", sorted(steps)[len(steps) // 2], flush=True)
"""
SAMPLE = """
import logging, resource, sys, time
from prefect_bt.flows.tasks.reporting.rank_log import RankLogForwarder
class Node:
    rank = 0
    def read_log(self, *, offset, limit):
        with open(sys.argv[1], "rb") as file:
            file.seek(offset)
            return file.read(limit)
logger = logging.Logger("sample")
logger.addHandler(logging.NullHandler())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
RankLogForwarder(Node(), lines_per_second=100, logger=logger).finish()
took = time.process_time() - began
print(took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)
"""
SECRET = "hf_AbCdEfGhIjKlMnOpQrSt"


def log_lines_per_second(given: argparse.Namespace, work: Path) -> list[Row]:
    """The most a command can print."""
    count = int(2_000_000 * given.scale) // 2000 * 2000
    pairs: list[tuple[float, float]] = []
    seen = Seen()
    for run in range(given.runs):
        ours = count / in_a_node(work / f"node-{run}", FASTEST, count, seen)
        pairs.append((ours, count / into_cat(work, FASTEST, count)))
    goal = Goal("", None)
    notes = ("log_lines_per_second: lines of 47 characters, as fast as a command can print them.",)
    return [
        paired(
            "log_lines_per_second",
            "1/s",
            pairs,
            peer="cat > file",
            goal=goal,
            extra=seen.extra(),
            notes=notes,
        )
    ]


def flood_step_time(given: argparse.Namespace, work: Path) -> list[Row]:
    """A training that prints 50,000 lines a second: how long its steps take."""
    count = max(50_000, int(250_000 * given.scale))
    pairs: list[tuple[float, float]] = []
    seen = Seen()
    for run in range(given.runs):
        ours = in_a_node(work / f"paced-{run}", PACED, count, seen)
        pairs.append((ours, into_cat(work, PACED, count)))
    goal = Goal("ratio <= 1.05", lambda ratio: ratio <= 1.05)
    notes = (
        "flood_step_time: a process that prints 50,000 lines a second, a write each, and computes "
        "in between; the median time of a step.",
    )
    return [
        paired(
            "flood_step_time",
            "s",
            pairs,
            peer="cat > file",
            goal=goal,
            extra=seen.extra(),
            notes=notes,
        )
    ]


def log_read_lines_per_second(given: argparse.Namespace, work: Path) -> list[Row]:
    """`prefect-bt logs` of a sealed log."""
    count = int(1_000_000 * given.scale)
    store = work / "store"
    path = sealed_job(store, count)
    environment = {**os.environ, "PREFECT_BT_STORE": str(store), "PREFECT_BT_STATE_DIR": str(work)}
    ours = [sys.executable, "-m", "prefect_bt.cli.entry", "logs"]
    rows: list[Row] = []
    for name, more in (("", []), (" --tail", ["--tail"])):
        pairs: list[tuple[float, float]] = []
        peaks: list[float] = []
        for _ in range(given.runs):
            seconds, peak = timed([*ours, *more], environment)
            peaks.append(peak)
            pairs.append((count / seconds, count / timed(["cat", str(path)], environment)[0]))
        notes = (f"log_read_lines_per_second: `prefect-bt logs{name}`, start to exit, to a pipe.",)
        rows.append(
            paired(
                "log_read_lines_per_second",
                "1/s",
                pairs,
                peer=f"cat;{name or ' plain'}",
                extra={"MB_peak": statistics.median(peaks)},
                notes=notes,
            )
        )
    return rows


def sample_lines_per_second(given: argparse.Namespace, work: Path) -> list[Row]:
    """What the flow does with a rank's log: shows a few lines, counts the others."""
    count = int(2_000_000 * given.scale)
    path = sealed_job(work / "store", count)
    pairs: list[tuple[float, float]] = []
    grown: list[float] = []
    for _ in range(given.runs):
        done = subprocess.run(
            [sys.executable, "-c", SAMPLE, str(path)], capture_output=True, text=True, check=True
        )
        seconds, megabytes = map(float, done.stdout.split()[-2:])
        grown.append(megabytes)
        pairs.append((count / 2 / seconds, count / 2 / timed(["wc", "-l", str(path)], None)[0]))
    notes = ("sample_lines_per_second: RankLog from the first byte to `finish`, in CPU seconds.",)
    extra = {"MB_grown": statistics.median(grown)}
    return [paired("sample_lines_per_second", "1/s", pairs, peer="wc -l", extra=extra, notes=notes)]


def redaction_speed(given: argparse.Namespace, work: Path) -> list[Row]:
    """Measure how fast the hundreds of spellings of a service account's JSON are masked."""
    chance = random.Random(1)
    account = service_account(chance)
    redact = Redactor([account])
    rows: list[Row] = []
    for kind, lines in log_kinds(account, chance).items():
        text = "\n".join(lines)
        text = text * max(1, int(8e6 * given.scale / len(text)))
        path = work / "kind.log"
        path.write_text(text)
        pairs: list[tuple[float, float]] = []
        for _ in range(given.runs):
            began = time.monotonic()
            redact(text)
            ours = len(text) / 1e6 / (time.monotonic() - began)
            pairs.append((ours, len(text) / 1e6 / timed(["cat", str(path)], None)[0]))
        rows.append(paired("redaction_speed", "MB/s", pairs, peer=f"cat; {kind}"))
    slowest = min(row.ours for row in rows)
    goal = Goal(">= 10", lambda speed: speed >= 10)
    notes = ("redaction_speed: Redactor on a text in memory, beside `cat` of it, start to exit.",)
    what = "slowest kind of text"
    return [*rows, alone("redaction_speed", "MB/s", [slowest], what=what, goal=goal, notes=notes)]


def service_account(chance: random.Random) -> str:
    body = base64.b64encode(chance.randbytes(1218)).decode()
    key = "\n".join(body[i : i + 64] for i in range(0, len(body), 64))
    document = {
        "type": "service_account",
        "private_key_id": chance.randbytes(20).hex(),
        "private_key": f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n",
        "client_email": "trainer@project.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    return json.dumps(document, indent=2)


def log_kinds(account: str, chance: random.Random) -> dict[str, list[str]]:
    key = json.loads(account)["private_key"].splitlines()
    return {
        "text": [f"{TEXT} {number}" for number in range(2000)],
        "JSON": [json.dumps({"step": n, "loss": chance.random()}) for n in range(2000)],
        "progress bars": [f"\r{n % 100}%|{'█' * (n % 10):10}| {n}/9999" for n in range(2000)],
        "base64": [base64.b64encode(chance.randbytes(48)).decode() for _ in range(2000)],
        "hex": [chance.randbytes(32).hex() for _ in range(2000)],
        "near misses": [line[:-1] + "~" for line in key * 80],
        "the secret": key * 80,
    }


FIGURES = {
    "log_lines_per_second": log_lines_per_second,
    "flood_step_time": flood_step_time,
    "log_read_lines_per_second": log_read_lines_per_second,
    "sample_lines_per_second": sample_lines_per_second,
    "redaction_speed": redaction_speed,
}


class Seen:
    """CPU seconds and memory of the agents that were looked at while they ran."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.peak: list[float] = []

    def extra(self) -> dict[str, float]:
        return {
            "agent_cpu_s": statistics.median(self.cpu),
            "agent_MB_peak": max(self.peak),
        }


def in_a_node(root: Path, code: str, count: int, seen: Seen) -> float:
    """What the command says it took, run as a start command of a real node."""
    root.mkdir(parents=True)
    script = root / "flood.py"
    script.write_text(code % TEXT)
    workspace = WorkspacePlan("/b10/workspace")
    plan = NodePlan(
        job_id="bench01",
        project_id="bench",
        attempt=0,
        rank=0,
        group_size=1,
        store=str(root / "store"),
        image=ImagePlan("none"),
        commands=(f"{sys.executable} -c '{script.read_text()}' {count}", "sleep 0.5"),
        environment={},
        secret_environment={"TOKEN": "token"},
        volumes=(Volume(VolumeKind.WORKSPACE, workspace.directory),),
        resources=Resources(),
        workspace=workspace,
        grace=10.0,
    )
    substrate = LocalProcessSubstrate(root / "state", orphan_deadline=None)
    handle = substrate.launch(plan, secrets={"token": SECRET})
    cpu = peak = 0.0
    while not handle.observe().is_over:
        for pid in marked_agents(handle.folder):
            cpu, peak = max(cpu, cpu_of(pid)), max(peak, peak_of(pid))
        time.sleep(0.1)
    seen.cpu.append(cpu)
    seen.peak.append(peak)
    took = said(handle.folder.log)
    handle.remove()
    return took


def into_cat(work: Path, code: str, count: int) -> float:
    script, target = work / "flood.py", work / "flood.log"
    script.write_text(code % TEXT)
    subprocess.run(
        f"{sys.executable} {script} {count} | cat > {target}", shell=True, check=True, cwd=work
    )
    return said(target)


def said(path: Path) -> float:
    """The number on the line that says `took`, near the file's end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        line = next(one for one in file.read().splitlines() if b"took " in one)
    return float(line.split()[-1])


def marked_agents(folder: NodeFolder) -> Iterator[int]:
    record = read_record(NodeRecord, folder.record)
    for pid in find_marked_processes(record.mark, folder.root) if record else ():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"prefect_bt.node_agent" in command and b"upload" not in command:
            yield pid


def cpu_of(pid: int) -> float:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> float:
    """MB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000 if "VmHWM:" in status else 0.0


def sealed_job(store: Path, count: int) -> Path:
    """A job of two ranks that is over; returns the file of the first."""
    ledger = Ledger(open_store(str(store)))
    project = ledger.projects.ensure("bench")
    job_id = ledger.reserve_job_id(project.id)
    record = JobRecord(job_id, "job-1", project.id, "bench", 1.0, {})
    ledger.create_job(record)
    ledger.append_event(job_id, JobState.CREATED)
    ledger.begin_attempt(job_id)
    now = time.time_ns()
    for rank in range(2):
        lines = (f"{TEXT} {number}" for number in range(count // 2))
        ledger.store.put(log_key(project.id, job_id, 0, rank), format_lines(now, lines))
    ledger.end_attempt(job_id, Outcome(0, JobState.FAILED))
    ledger.append_event(job_id, JobState.FAILED)
    return next(store.glob("**/rank-0.log"))


def timed(command: list[str], environment: dict[str, str] | None) -> tuple[float, float]:
    """Seconds, and the most memory the process had (MB)."""
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout
    peak = 0.0
    while process.stdout.read(1 << 20):
        peak = max(peak, peak_of(process.pid))
    if process.wait():
        sys.exit(f"{command} ended with {process.returncode}")
    return time.monotonic() - began, peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=FIGURES, help="may be repeated")
    parser.add_argument("--runs", type=int, default=3, help="pairs a figure")
    parser.add_argument("--scale", type=float, default=1.0, help="of counts and times")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in given.only or FIGURES:
        print(f"{name} ... ({busy():.0%} of the machine is busy)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
            rows += FIGURES[name](given, Path(folder))
    print(as_json(rows) if given.output == "json" else as_table(rows))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

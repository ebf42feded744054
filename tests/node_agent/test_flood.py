"""A command that prints more than anybody reads: everything is kept, and nothing grows."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.logs.line_format import parse_lines
from tests.node_agent.rig import Rig, agent_pids, own_lines, raw_log, wait_over, wait_until

pytestmark = [pytest.mark.slow]

FLOOD = """
import os, sys, time
began, done = time.monotonic(), 0
while done < 100_000:
    due = min(100_000, int((time.monotonic() - began) * 50_000))
    for number in range(done, due):
        os.write(1, b"step %d loss 0.123456789 of the flood\\n" % number)
    done = max(done, due)
    time.sleep(0.005)
"""

ODD = r"""
import os, sys
out = os.fdopen(1, "wb", 0)
out.write(b"x" * 10_000_000 + b"\n")
out.write(bytes(range(256)) * 400 + b"\n")
for percent in range(20_000):
    out.write(b"\r%d of 20000" % percent)
out.write(b"\r20000 of 20000\n" + "half ✓".encode()[:-1])
"""
PEAK_KB = 160_000
"""An agent with nothing to do has some 40 MB."""


def peak(pids: list[int]) -> int:
    """The most memory that any of them has had, kB."""
    found = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return max(int(text.partition("VmHWM:")[2].split()[0]) for text in found)


def script(code: str) -> str:
    return f"python3 - <<'EOF'\n{textwrap.dedent(code)}\nEOF"


def run_to_its_end(rig: Rig, code: str) -> tuple[HostHandle, int]:
    """The node that ran it, and the most memory that an agent of it had meanwhile, kB."""
    handle = rig.launch(script(code), "until [ -e over ]; do sleep 0.05; done")
    wait_until(lambda: handle.observe().command == 1)
    most = peak(agent_pids(handle))
    (handle.folder.path / "workspace" / "over").touch()
    wait_over(handle)
    return handle, most


def test_fifty_thousand_lines_a_second(rig: Rig) -> None:
    handle, most = run_to_its_end(rig, FLOOD)
    assert handle.observe().exit_code == 0
    steps = [line for line in own_lines(handle) if line.startswith("step")]
    assert steps == [f"step {number} loss 0.123456789 of the flood" for number in range(100_000)]
    assert 0 < most < PEAK_KB


def test_output_that_is_no_line_of_text(rig: Rig) -> None:
    handle, most = run_to_its_end(rig, ODD)
    lines = own_lines(handle)
    assert sum(len(line) for line in lines if set(line) == {"x"}) == 10_000_000
    frames = [line for line in lines if line.endswith("of 20000")]
    assert frames[-1] == "20000 of 20000"
    assert len(frames) < 50, "a frame a second"
    assert "".join(lines).endswith("half \ufffd")  # a pause in between makes two lines of it
    stamps = [line.timestamp for line in parse_lines(raw_log(handle))]
    assert stamps == sorted(set(stamps))
    assert 0 < most < PEAK_KB

"""Ports of gangs: one each, whoever else launches at the same moment."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from prefect_bt.host import ports
from prefect_bt.host.ports import (
    FIRST_PORT,
    LAST_PORT,
    NoFreePort,
    ReservedPort,
    is_port_free,
    reserve_port,
)

CLAIM = """
import sys
from pathlib import Path
from prefect_bt.host.ports import reserve_port
print(*(reserve_port("the same gang", state_dir=Path(sys.argv[1])).number for _ in range(20)))
sys.stdout.flush()
sys.stdin.read()
"""


GANG = f"gang-{os.getpid()}"
"""Another run of the tests claims other numbers."""


@pytest.fixture
def claimed(tmp_path: Path) -> Iterator[ReservedPort]:
    held = reserve_port(GANG, state_dir=tmp_path)
    yield held
    os.close(held.descriptor)


def test_a_port_is_outside_of_what_clients_get(claimed: ReservedPort) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert FIRST_PORT <= claimed.number <= LAST_PORT
    if low > LAST_PORT:
        assert not low <= claimed.number <= high
    assert claimed.number not in ports.WELL_KNOWN_PORTS


def test_two_gangs_have_two(claimed: ReservedPort, tmp_path: Path) -> None:
    other = reserve_port(GANG, state_dir=tmp_path / "another")
    os.close(other.descriptor)
    assert other.number != claimed.number


def test_it_is_free_again_with_its_last_holder(tmp_path: Path) -> None:
    first = reserve_port(f"{GANG}-again", state_dir=tmp_path)
    inherited = os.dup(first.descriptor)
    os.close(first.descriptor)
    second = reserve_port(f"{GANG}-again", state_dir=tmp_path)
    os.close(inherited)
    third = reserve_port(f"{GANG}-again", state_dir=tmp_path)
    os.close(second.descriptor)
    os.close(third.descriptor)
    assert second.number != first.number
    assert third.number == first.number


def test_a_reserved_port_is_not_listened_on(claimed: ReservedPort) -> None:
    assert is_port_free(claimed.number)
    with socket.create_server(("127.0.0.1", claimed.number)):
        assert not is_port_free(claimed.number)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_what_a_stranger_listens_on_is_passed_over(tmp_path: Path, address: str) -> None:
    first = reserve_port(f"{GANG}-stranger", state_dir=tmp_path)
    os.close(first.descriptor)
    with socket.create_server((address, first.number)):
        second = reserve_port(f"{GANG}-stranger", state_dir=tmp_path)
    os.close(second.descriptor)
    assert second.number != first.number


def test_processes_that_launch_at_once_never_share_one(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(4)
    ]
    numbers: list[str] = []
    for process in started:
        numbers += process.stdout.readline().split()
    for process in started:
        process.communicate("")
    assert len(numbers) == len(set(numbers)) == 80


ALONE = """
import subprocess, sys
from pathlib import Path
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
stranger = subprocess.Popen(
    [sys.executable, "-c", sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
)
print("stranger:", stranger.stdout.readline().strip(), flush=True)
exec(sys.argv[3])
stranger.communicate("")
"""
"""Program that runs argv[3] in a network of its own, in which another user, argv[2], has names."""

STRANGER = """
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
os.setgid(65534); os.setuid(65534)
held = []
for number in range({first}, {last} + 1):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(chr(0) + "prefect-bt/port/%d" % number)
    if {listens}:
        one.listen(1)
    held.append(one)
print(len(held), flush=True)
sys.stdin.read()
"""

CLAIMS = """
from prefect_bt.host.ports import reserve_port
first, second = Path(sys.argv[1], "a"), Path(sys.argv[1], "b")
held = [reserve_port("the same gang", state_dir=first) for _ in range(5)]
print(len({one.number for one in held}))
again = subprocess.run(
    [sys.executable, "-c", "import sys; from pathlib import Path; "
     "from prefect_bt.host.ports import reserve_port; "
     "print(reserve_port('the same gang', state_dir=Path(sys.argv[1])).number)", str(first)],
    capture_output=True, text=True, check=True,
).stdout
print(int(again) not in {one.number for one in held})
"""

JOB_RUNS = """
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.node_agent.rig import make_plan, own_lines, wait_over
state = Path(sys.argv[1], "state")
substrate = LocalProcessSubstrate(state, orphan_deadline=None)
commands = ("echo port $BT_LEADER_PORT",)
nodes = [
    substrate.launch_node(make_plan(state, commands, rank=rank, group_size=2), secrets={})
    for rank in range(2)
]
print([wait_over(node).exit_code for node in nodes])
print(len({line for node in nodes for line in own_lines(node)}))
for node in nodes:
    node.remove()
"""


def beside_a_stranger(folder: Path, stranger: str, code: str) -> list[str]:
    """Return the output of `code`, run in a network that no other test shares."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("a network of its own needs root, unshare and ip")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", ALONE, str(folder), stranger, code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"no network of its own: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("listens", [True, False])
def test_a_port_can_be_claimed_while_another_user_holds_all_names(
    tmp_path: Path, listens: bool
) -> None:
    stranger = STRANGER.format(first=FIRST_PORT, last=LAST_PORT, listens=listens)
    said = beside_a_stranger(tmp_path, stranger, CLAIMS)
    assert said == [f"stranger: {LAST_PORT - FIRST_PORT + 1}", "5", "True"]


@pytest.mark.slow
def test_a_job_starts_while_another_user_holds_all_names(tmp_path: Path) -> None:
    stranger = STRANGER.format(first=FIRST_PORT, last=LAST_PORT, listens=True)
    said = beside_a_stranger(tmp_path, stranger, JOB_RUNS)
    assert said[1:] == ["[0, 0]", "1"]


@pytest.mark.slow
def test_the_few_names_of_another_user_count(tmp_path: Path) -> None:
    """Claim names as gangs of two users on one machine do: they never share a number."""
    code = """
from prefect_bt.host import ports
ports._candidates = lambda gang: iter(range(20000, 20101))
print(ports.reserve_port("gang", state_dir=Path(sys.argv[1])).number)
"""
    stranger = STRANGER.format(first=20000, last=20099, listens=True)
    assert beside_a_stranger(tmp_path, stranger, code) == ["stranger: 100", "20100"]


def test_a_machine_without_a_free_port_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("", 0))) as server:
        monkeypatch.setattr(ports, "FIRST_PORT", server.getsockname()[1])
        monkeypatch.setattr(ports, "LAST_PORT", server.getsockname()[1])
        with pytest.raises(NoFreePort, match="no port between"):
            reserve_port(GANG, state_dir=tmp_path)


def test_reserved_ports_are_left_to_their_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ip_local_reserved_ports").write_text("20000-32765,32767\n")
    monkeypatch.setattr(ports, "_IPV4_SETTINGS", tmp_path)
    monkeypatch.setattr(ports, "_reserve_by_socket", ports._reserve_by_file)
    monkeypatch.setattr(ports, "is_port_free", lambda _: True)
    held = reserve_port(GANG, state_dir=tmp_path)
    os.close(held.descriptor)
    assert held.number == 32766


def test_where_there_are_no_abstract_sockets_a_file_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    first = reserve_port(f"{GANG}-file", state_dir=tmp_path)
    second = reserve_port(f"{GANG}-file", state_dir=tmp_path)
    os.close(first.descriptor)
    third = reserve_port(f"{GANG}-file", state_dir=tmp_path)
    os.close(second.descriptor)
    os.close(third.descriptor)
    assert first.number == third.number != second.number

"""Ports of gangs: one each, whoever else launches at the same moment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from prefect_bt.host import ports
from prefect_bt.host.ports import FIRST, LAST, ClaimedPort, NoFreePort, claim_port, is_free

CLAIM = """
import sys
from pathlib import Path
from prefect_bt.host.ports import claim_port
print(*(claim_port("the same gang", state_dir=Path(sys.argv[1])).number for _ in range(20)))
sys.stdout.flush()
sys.stdin.read()
"""


GANG = f"gang-{os.getpid()}"
"""Another run of the tests claims other numbers."""


@pytest.fixture
def claimed(tmp_path: Path) -> Iterator[ClaimedPort]:
    held = claim_port(GANG, state_dir=tmp_path)
    yield held
    os.close(held.descriptor)


def test_a_port_is_outside_of_what_clients_get(claimed: ClaimedPort) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert FIRST <= claimed.number <= LAST
    if low > LAST:
        assert not low <= claimed.number <= high
    assert claimed.number not in ports.FAMILIAR


def test_two_gangs_have_two(claimed: ClaimedPort, tmp_path: Path) -> None:
    other = claim_port(GANG, state_dir=tmp_path / "another")
    os.close(other.descriptor)
    assert other.number != claimed.number


def test_it_is_free_again_with_its_last_holder(tmp_path: Path) -> None:
    first = claim_port(f"{GANG}-again", state_dir=tmp_path)
    inherited = os.dup(first.descriptor)
    os.close(first.descriptor)
    second = claim_port(f"{GANG}-again", state_dir=tmp_path)
    os.close(inherited)
    third = claim_port(f"{GANG}-again", state_dir=tmp_path)
    os.close(second.descriptor)
    os.close(third.descriptor)
    assert second.number != first.number
    assert third.number == first.number


def test_who_holds_it_does_not_listen(claimed: ClaimedPort) -> None:
    assert is_free(claimed.number)
    with socket.create_server(("127.0.0.1", claimed.number)):
        assert not is_free(claimed.number)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_what_a_stranger_listens_on_is_passed_over(tmp_path: Path, address: str) -> None:
    first = claim_port(f"{GANG}-stranger", state_dir=tmp_path)
    os.close(first.descriptor)
    with socket.create_server((address, first.number)):
        second = claim_port(f"{GANG}-stranger", state_dir=tmp_path)
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


def test_a_machine_without_a_free_port_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("", 0))) as server:
        monkeypatch.setattr(ports, "FIRST", server.getsockname()[1])
        monkeypatch.setattr(ports, "LAST", server.getsockname()[1])
        with pytest.raises(NoFreePort, match="no port between"):
            claim_port(GANG, state_dir=tmp_path)


def test_reserved_ports_are_left_to_their_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ip_local_reserved_ports").write_text("20000-32765,32767\n")
    monkeypatch.setattr(ports, "_SYSTEM", tmp_path)
    monkeypatch.setattr(ports, "_lock", ports._lock_file)
    monkeypatch.setattr(ports, "is_free", lambda _: True)
    held = claim_port(GANG, state_dir=tmp_path)
    os.close(held.descriptor)
    assert held.number == 32766


def test_where_there_are_no_abstract_sockets_a_file_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    first = claim_port(f"{GANG}-file", state_dir=tmp_path)
    second = claim_port(f"{GANG}-file", state_dir=tmp_path)
    os.close(first.descriptor)
    third = claim_port(f"{GANG}-file", state_dir=tmp_path)
    os.close(second.descriptor)
    os.close(third.descriptor)
    assert first.number == third.number != second.number

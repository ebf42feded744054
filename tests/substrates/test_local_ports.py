"""What the nodes of a gang are told of their rendezvous, and for how long the port is theirs."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.errors import SubstrateError
from prefect_bt.host import ports
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.node_agent.rig import Rig, make_plan, own_lines, wait_line, wait_over, wait_running

TELL = "env | grep -E '^(BT_LEADER_PORT|MASTER_|PET_)' | sort; echo told"
# The leader listens where it was told to; the others say hello to it.
SOCKETS = """python3 - <<'END'
import os, socket, time
place = (os.environ.get("BT_LEADER_ADDR", "127.0.0.1"), int(os.environ["BT_LEADER_PORT"]))
rank, size = int(os.environ["RANK"]), int(os.environ["SIZE"])
if rank == 0:
    with socket.create_server(place, backlog=size) as server:
        said = sorted(server.accept()[0].recv(9).decode() for _ in range(size - 1))
        os.write(1, b"%s\\n" % repr(said).encode())
else:
    for _ in range(600):
        try:
            socket.create_connection(place).sendall(b"rank %d" % rank)
            break
        except OSError:
            time.sleep(0.1)
END"""


def told(rig: Rig, **changes: object) -> dict[str, str]:
    _, lines = rig.run(TELL, **changes)
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.slow
def test_every_node_of_a_gang_gets_the_same_variables(rig: Rig) -> None:
    handles = [rig.launch(TELL, rank=rank, group_size=3) for rank in range(3)]
    assert [wait_over(handle).exit_code for handle in handles] == [0, 0, 0]
    said = [own_lines(handle) for handle in handles]
    assert said[0] == said[1] == said[2]
    port = dict(line.split("=", 1) for line in said[0] if "=" in line)
    number = port["BT_LEADER_PORT"]
    assert port == {
        "BT_LEADER_PORT": number,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": number,
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": number,
        "PET_RDZV_ID": "abc1234-0",
    }


def test_a_node_alone_gets_no_launchers_defaults(rig: Rig) -> None:
    assert list(told(rig)) == ["BT_LEADER_PORT"]


def test_what_the_user_sets_stays(rig: Rig) -> None:
    own = {"MASTER_PORT": "1234", "PET_RDZV_ID": "mine"}
    plan = make_plan(rig.state, (TELL,), environment=own, group_size=2)
    handle = rig.launch_plan(plan)
    wait_over(handle)
    assert {"MASTER_PORT=1234", "PET_RDZV_ID=mine"} <= set(own_lines(handle))


def test_a_secret_of_that_name_stays(rig: Rig) -> None:
    plan = make_plan(rig.state, ('test "$MASTER_PORT" = 1234',), group_size=2)
    plan = replace(plan, secret_environment={"MASTER_PORT": "s"})
    assert wait_over(rig.launch_plan(plan, secrets={"s": "1234"})).exit_code == 0


def port_of(rig: Rig, **changes: object) -> int:
    handle = rig.launch(f"{TELL}; exec sleep 300", **changes)
    wait_line(handle, "told")
    return int(own_lines(handle)[0].partition("=")[2])


@pytest.mark.usefixtures("own_numbers")
def test_a_gang_keeps_its_port_until_its_last_node_is_gone(rig: Rig) -> None:
    number = port_of(rig, group_size=2)
    port_of(rig, group_size=2, rank=1)
    assert taken(number)
    rig.nodes[0][0].remove()
    assert taken(number), "the other node lives"
    rig.nodes[1][0].remove()
    assert not taken(number)


@pytest.fixture
def own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other process of this machine claim the numbers that this test looks at."""

    def lock(number: int, _state_dir: Path) -> int | None:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0prefect-bt-test/{os.getpid()}/{number}")
        except OSError:
            holder.close()
            return None
        return holder.detach()

    monkeypatch.setattr(ports, "_reserve_by_socket", lock)


def taken(number: int) -> bool:
    descriptor = ports._reserve_by_socket(number, Path("unused"))
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def test_commands_do_not_inherit_it(rig: Rig) -> None:
    handle = rig.launch("setsid sh -c 'ls -l /proc/self/fd' | grep -c socket")
    wait_over(handle)
    assert own_lines(handle) == ["0"]


@pytest.mark.usefixtures("own_numbers")
def test_a_gang_that_could_not_be_launched_holds_none(rig: Rig) -> None:
    number = port_of(rig, group_size=2)
    broken = rig.state / "jobs" / "abc1234" / "attempt-0" / "rank-1"
    broken.mkdir()
    with pytest.raises(SubstrateError):
        rig.launch("true", group_size=2, rank=1)
    broken.rmdir()
    rig.nodes[0][0].remove()
    assert not taken(number)


@pytest.mark.slow
def test_another_process_that_launches_a_rank_gives_it_the_same_port(rig: Rig) -> None:
    number = port_of(rig, group_size=2)
    rig.substrate = LocalProcessSubstrate(rig.state, orphan_deadline=None)
    assert port_of(rig, group_size=2, rank=1) == number


@pytest.mark.slow
def test_gangs_of_four_over_plain_sockets_do_not_meet(rig: Rig) -> None:
    leaders = []
    for job in ("gang001", "gang002"):
        for rank in range(4):
            env = {"RANK": str(rank), "SIZE": "4", "BT_TRAINING_JOB_ID": job}
            handle = rig.launch(SOCKETS, job_id=job, rank=rank, group_size=4, environment=env)
            leaders += [handle] if rank == 0 else []
    for handle in leaders:
        assert wait_over(handle).exit_code == 0
        assert own_lines(handle) == ["['rank 1', 'rank 2', 'rank 3']"]


def test_the_next_attempt_does_not_wait_for_the_last_ones_port(rig: Rig) -> None:
    first = rig.launch("exec sleep 300", group_size=1)
    wait_running(first)
    again = told(rig, attempt=1)
    assert again["BT_LEADER_PORT"].isdigit()

"""Limits of root in a container on the machine, and rights that it must keep."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import docker
import pytest

from prefect_bt.host.container_privileges import DEFAULT_CAPABILITIES, Privileges
from prefect_bt.ledger.records import NodePhase
from tests.node_agent.rig import all_lines, own_lines, wait_line, wait_over, wait_until

from .node_rig import DockerRig, build_image, shell_files, wait_file
from .removal import remove_image

pytestmark = [pytest.mark.integration]

NUMBERS = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
    "IPC_LOCK": 14,
    "SYS_CHROOT": 18,
    "SYS_PTRACE": 19,
    "MKNOD": 27,
    "AUDIT_WRITE": 29,
}
"""Numbers of the kernel's capabilities (linux/capability.h)."""
SHOW = "grep -E 'Cap(Eff|Bnd|Prm|Amb)|NoNewPrivs' /proc/self/status"


def mask(*names: str) -> str:
    return f"{sum(1 << NUMBERS[name] for name in names):016x}"


def shown(lines: list[str]) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


DEVICES = """
mknod /b10/workspace/disk b 8 0 && echo MADE
mknod /tmp/memory c 1 1 && echo MADE
mknod /mnt/bt-scratch/null c 1 3 && echo MADE
mknod /tmp/pipe p && echo pipes are left
"""


def test_a_container_has_the_documented_privileges_only(rig: DockerRig) -> None:
    """It makes no device on a folder of the machine, and leaves it most of its processes."""
    handle = rig.launch(f"{SHOW}; echo shown; {DEVICES} echo told; sleep 300")
    wait_line(handle, "told")
    lines = own_lines(handle)
    kept, end = mask(*DEFAULT_CAPABILITIES), lines.index("shown")
    assert shown(lines[:end]) == {
        "CapPrm": kept,
        "CapEff": kept,
        "CapBnd": kept,
        "CapAmb": mask(),
        "NoNewPrivs": "1",
    }
    refused = [line for line in lines[end + 1 :] if line not in {"pipes are left", "told"}]
    assert len(refused) == 3
    assert all("not permitted" in line for line in refused)
    assert "pipes are left" in lines
    node = handle.folder.path
    assert [p for p in node.rglob("*") if p.is_block_device() or p.is_char_device()] == []
    limit = rig.inspect(handle)["HostConfig"]["PidsLimit"]
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert 1024 <= limit <= max(1024, most // 4)
    assert os.getpid() < most


@pytest.mark.extended
def test_the_substrate_can_grant_more_privileges(rig: DockerRig) -> None:
    more = Privileges(("IPC_LOCK", "SYS_PTRACE"), allow_new_privileges=True, max_processes=300)
    rig.substrate = rig.reopen(privileges=more)
    handle = rig.launch(f"{SHOW}; echo told; sleep 300")
    wait_line(handle, "told")
    found = shown(own_lines(handle)[:-1])
    assert found["CapEff"] == mask(*DEFAULT_CAPABILITIES, "IPC_LOCK", "SYS_PTRACE")
    assert found["NoNewPrivs"] == "0"
    assert rig.inspect(handle)["HostConfig"]["PidsLimit"] == 300


BECOME = """
set -e
echo 'apt:x:42:65534::/tmp:/bin/sh' >> /etc/passwd
mkdir -p /tmp/cache
touch /tmp/cache/list
chown -R 42:65534 /tmp/cache
chmod 700 /tmp/cache
su -s /bin/sh apt -c 'id -u; touch /tmp/cache/fetched; ls /root/secret 2>&1 || echo kept out'
ls -n /tmp/cache/fetched | tr -s ' ' | cut -d ' ' -f 3
cat /tmp/cache/list
su -s /bin/sh apt -c 'sleep 300' & sleep 1; kill -TERM -1; wait
echo ended
"""


def test_package_managers_still_become_another_user(rig: DockerRig) -> None:
    """Change owners, become a user, read and end its own, as apt does for its downloads."""
    status, lines = rig.run(BECOME)
    assert status.exit_code == 0, lines
    assert lines[0] == "42"
    assert "kept out" in lines
    assert "42" in lines[1:]
    assert lines[-1] == "ended"


SETUID = """
cp /bin/real-id id; chown 0:0 id; chmod 4755 id
echo 'nobody:x:65534:65534::/tmp:/bin/sh' >> /etc/passwd
su -s /bin/sh nobody -c './id -u'
"""


@pytest.mark.extended
def test_a_setuid_program_does_not_give_root(rig: DockerRig, engine: docker.APIClient) -> None:
    """Set the bit, which stays on the folder: docs/docker.md says what to do then."""
    program = shutil.which("id")
    libraries = shell_files("id")
    if program is None or libraries is None:
        pytest.skip("no `id` on this machine")  # busybox gives its privileges up by itself
    files = {name: path.read_bytes() for name, path in libraries.items() if name != "bin/sh"}
    image = build_image(engine, "real-id", {**files, "bin/real-id": Path(program).read_bytes()})
    handle = rig.launch(SETUID, image=image)
    assert wait_over(handle).exit_code == 0, all_lines(handle)
    assert own_lines(handle) == ["65534"]
    made = handle.folder.path / "workspace/id"
    assert made.stat().st_mode & 0o4000, "documented: what remains"
    rig.substrate = rig.reopen(privileges=Privileges(allow_new_privileges=True))
    assert rig.run(SETUID, image=image, attempt=1)[1] == ["0"], "where a block allows it"
    for one in rig.substrate.list_nodes(rig.job):
        one.remove()
    remove_image(engine, image)


BOMB = """
echo 1 > up
bomb() { while :; do (sleep 300) & done; }
bomb & bomb & bomb &
wait
sleep 300
"""


def test_a_fork_bomb_reaches_its_limit_and_can_be_stopped(rig: DockerRig) -> None:
    rig.substrate = rig.reopen(privileges=Privileges(max_processes=64))
    bomb = rig.launch(BOMB)
    wait_file(bomb.folder.path / "workspace/up")
    wait_until(lambda: "fork" in "\n".join(all_lines(bomb)).lower(), "it forks without an end")
    beside, lines = rig.run("for i in 1 2 3 4 5; do (echo $i); done", attempt=1)
    assert (beside.exit_code, lines) == (0, ["1", "2", "3", "4", "5"])
    assert bomb.observe().phase in {NodePhase.RUNNING, NodePhase.FLUSHING, NodePhase.DONE}
    bomb.stop(reason="stopped", force=True)
    status = wait_over(bomb)
    assert status.phase is NodePhase.DONE
    assert status.reason in {"", "stopped"}

"""A node in a container: what it sees, what it prints and how it ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from prefect_bt.host.nodes.container_pipes import format_order
from prefect_bt.host.state_folder import volume_folder
from prefect_bt.ledger.records import NodePhase
from prefect_bt.node_agent.commands.container_runner import ContainerRunner, ContainerStartError
from prefect_bt.node_agent.commands.runner import ExitStatus
from prefect_bt.planning.plan import Resources, Volume, VolumeKind, WorkspacePlan
from prefect_bt.substrates.docker.node_handle import DockerNodeHandle
from tests.node_agent.rig import all_lines, own_lines, wait_line, wait_over, with_checkpoints

from .node_rig import (
    DockerRig,
    bare_container,
    build_image,
    import_image,
    record_of,
    shell_files,
    wait_file,
)
from .removal import remove_image

pytestmark = [pytest.mark.integration]

SECRETS = {
    "quotes": "it's \"here\" ''",
    "lines": "one\n\ntwo\n",
    "slashes": "\\n \\\\ \\0101 \\c end\\",
    "dollars": "$HOME `id` $(id) ${X:-y} !!",
    "letters": "Zürich 東京 \U0001f511",
    "blanks": "  before and after \t ",
    "empty": "",
    "percent": "%s %b * ? [a] ~ # ; & | < >",
}


@pytest.fixture(scope="module")
def app_image(engine: docker.APIClient, base_image: str) -> Iterator[str]:
    """One with a WORKDIR, files in it, and a variable and PATH of its own."""
    files = {
        "app/data/model.txt": b"of the image\n",
        "app/both.txt": b"of the image\n",
        "app/.hidden": b"hidden\n",
        "app/bin/greet": b"#!/bin/sh\necho greetings\n",
    }
    lines = ("ENV OF_IMAGE='a b' PATH=/app/bin:/bin", "WORKDIR /app", "USER 1000")
    name = build_image(engine, "app", files, *lines)
    yield name
    remove_image(engine, name)


# -- what it sees ---------------------------------------------------------------------------


def test_variables_user_and_shared_memory(rig: DockerRig, app_image: str) -> None:
    resources = Resources(cpus=1, memory=256 * 1024**2, shared_memory=192 * 1024**2)
    handle = rig.launch(
        'echo "$OF_IMAGE|$PLAIN|$BT_LEADER_PORT"; greet; id -u; hostname; echo $HOME',
        "df -k /dev/shm | tail -n 1; ulimit -n; ulimit -l; sleep 300",
        image=app_image,
        environment={"PLAIN": "x 'y' $z", "BT_TRAINING_JOB_ID": rig.job},
        resources=resources,
    )
    wait_line(handle, "unlimited" if _raises_limits(rig) else "shm")
    lines = own_lines(handle)
    name = f"baseten-training-job-{rig.job}-multinode-0"
    assert lines[:5] == ["a b|x 'y' $z|29500", "greetings", "0", name, "/root"]
    assert lines[5].split()[1] == str(192 * 1024)
    if _raises_limits(rig):
        assert lines[6:8] == [str(1024**2), "unlimited"]


def _raises_limits(rig: DockerRig) -> bool:
    return rig.substrate._raises_limits


def test_secrets_are_exact_and_nowhere_to_be_found(rig: DockerRig) -> None:
    names = {f"SECRET_{name.upper()}": name for name in SECRETS}
    values = {name: f"{value}" for name, value in SECRETS.items()}
    values["long"] = "very-secret-" * 8_000  # more than a pipe holds, once it is spelled
    names["SECRET_LONG"] = "long"
    script = 'for n in %s; do eval "printf %%s \\"\\$SECRET_$n\\"" > $n; done; echo told; sleep 300'
    upper = " ".join(name.removeprefix("SECRET_") for name in names)
    handle = rig.launch(script % upper, secret_environment=names, secrets=values)
    wait_line(handle, "told")
    workspace = handle.folder.path / "workspace"
    found = {name: (workspace / name.upper()).read_bytes().decode() for name in values}
    assert found == values
    shutil.rmtree(workspace)
    hidden = [value.encode() for name, value in values.items() if len(value) > 8]
    places = {
        "inspect": json.dumps(rig.inspect(handle), ensure_ascii=False).encode(),
        "image": json.dumps(rig.client.inspect_image(rig.image)).encode(),
        "arguments": b"".join(_read(p) for p in Path("/proc").glob("[0-9]*/cmdline")),
    }
    for path in handle.folder.path.rglob("*"):
        if path.is_file():
            with suppress(FileNotFoundError):  # the node runs, and replaces its status
                places[str(path)] = path.read_bytes()
    assert [where for where, text in places.items() for value in hidden if value in text] == []
    pid = record_of(handle).pid
    assert b"SECRET_" not in _read(Path(f"/proc/{pid}/environ"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_volumes(rig: DockerRig) -> None:
    plan = with_checkpoints(
        rig.plan(
            "cat /models/llama/w.txt; touch /models/llama/new || echo refused",
            "mkdir /mnt/ckpts/step-1; echo 7 > /mnt/ckpts/step-1/w; echo c > /root/.cache/a/f",
            "echo o > /root/.cache/outer; ls /root/.cache; pwd; echo s > $BT_SCRATCH_DIR/s",
        )
    )
    weights = Volume(VolumeKind.WEIGHTS, "/models/llama", key="tree", read_only=True)
    outer = Volume(VolumeKind.CACHE_BASE, "/root/.cache")
    inner = Volume(VolumeKind.PROJECT_CACHE, "/root/.cache/a")
    plan = replace(plan, checkpoints=None, volumes=(*plan.volumes, weights, inner, outer))
    folder = volume_folder(
        weights, plan=plan, state_dir=rig.state, node=rig.substrate._handle(rig.job, 0, 0).folder
    )
    folder.mkdir(parents=True)
    (folder / "w.txt").write_text("weights\n")
    handle = rig.launch_plan(plan)
    assert wait_over(handle).exit_code == 0, all_lines(handle)
    lines = own_lines(handle)
    assert lines[0] == "weights"
    assert lines[-4:] == ["refused", "a", "outer", "/b10/workspace"]
    assert not (folder / "new").exists()
    assert (handle.job.checkpoints_folder(0) / "step-1/w").read_text() == "7\n"
    assert (handle.folder.path / "scratch/s").read_text() == "s\n"
    project, base = (
        volume_folder(one, plan=plan, state_dir=rig.state, node=handle.folder)
        for one in (inner, outer)
    )
    assert (project / "f").read_text() == "c\n"
    assert (base / "outer").read_text() == "o\n"


def test_the_images_folder_is_reachable_from_the_workspace(rig: DockerRig, app_image: str) -> None:
    plan = rig.plan("pwd; cat data/model.txt both.txt .hidden; ls /app", image=app_image)
    _fill_workspace(rig, {"both.txt": "of the workspace\n", "train.py": "x\n"})
    handle = rig.launch_plan(plan)
    assert wait_over(handle).exit_code == 0, all_lines(handle)
    lines = own_lines(handle)
    assert lines[:4] == ["/b10/workspace", "of the image", "of the workspace", "hidden"]
    assert "train.py" not in lines


def test_the_workspace_is_copied_into_the_images_folder(rig: DockerRig, app_image: str) -> None:
    _fill_workspace(rig, {"both.txt": "of the workspace\n", "run.sh": "echo ran in $PWD\n"})
    status, lines = rig.run(
        "pwd; cat data/model.txt both.txt; chmod +x run.sh",
        "./run.sh",
        image=app_image,
        workspace=WorkspacePlan("/b10/workspace", in_image=True),
    )
    assert status.exit_code == 0, lines
    assert lines == ["/app", "of the image", "of the workspace", "ran in /app"]


def _fill_workspace(rig: DockerRig, files: dict[str, str]) -> None:
    """As staging leaves it, before the container starts."""
    start = rig.substrate.launcher.create_node_folder

    def filled(node: object, *, contained: bool = False) -> int:
        lock = start(node, contained=contained)  # type: ignore[arg-type]
        folder = rig.substrate._handle(rig.job, 0, 0).folder.path / "workspace"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        return lock

    rig.substrate.launcher.create_node_folder = filled  # type: ignore[method-assign]


# -- what it prints -------------------------------------------------------------------------


def test_ten_commands_share_the_folder_and_what_they_leave(rig: DockerRig) -> None:
    commands = [f"echo {n} >> all; echo command {n}" for n in range(8)]
    status, lines = rig.run(
        "(until test -e go; do sleep 0.1; done; echo late; touch said) & cd /; export LOST=1",
        *commands,
        'cat all | wc -l; echo "${LOST:-gone}"; touch go; until test -e said; do sleep 0.1; done; '
        'read x; echo "read: $?"',
    )
    assert (status.exit_code, status.command) == (0, 9)
    assert [line for line in lines if line != "late"] == [
        *(f"command {n}" for n in range(8)),
        *("8", "gone", "read: 1"),
    ]
    assert lines.count("late") == 1, "of a background process of the first command"


# -- how it ends ----------------------------------------------------------------------------


def test_a_flood_is_whole_and_a_command_that_fails_is_the_last(rig: DockerRig) -> None:
    flood = "seq 1 200000; echo to stderr >&2; printf 'no end'"
    status, lines = rig.run(flood, "echo second; kill 0; sleep 9", "echo never")
    assert (status.phase, status.command) == (NodePhase.DONE, 1)
    assert (status.exit_code, status.signal) == (143, 15)
    assert (status.reason, status.oom, status.cause) == ("", False, None)
    expected = [*map(str, range(1, 200_001)), "to stderr", "no end", "second"]
    assert lines[: len(expected)] == expected
    assert "never" not in lines


SHELLS = ("busybox", "dash", pytest.param("bash", marks=pytest.mark.extended))
ENDS = {
    "exit 0": 0,
    "exit 3": 3,
    "/workspace": 126,
    "no-such-program": 127,
    "exit 137": 137,
    "sh -c 'kill -9 $$'": 137,
    "kill -SEGV $$": 139,
    "kill 0; sleep 9": 143,
    "kill 1; exec 0<&- 1>&- 2>&-; exit 4": 4,
    "trap '' TERM; kill 0; exit 5": 5,
    "kill -9 1; exit 6": 6,
    "kill -9 0": 137,  # with our listener: the next one runs all the same
    "exit 7": 7,
}


@pytest.fixture(params=SHELLS)
def shell_image(
    request: pytest.FixtureRequest, engine: docker.APIClient, base_image: str
) -> Iterator[str]:
    """With that shell as /bin/sh, under which the first process runs, too."""
    if request.param == "busybox":
        yield base_image
        return
    files = shell_files(request.param)
    if files is None:
        pytest.skip(f"no {request.param} on this machine")
    busybox = Path(shutil.which("busybox") or "")
    tools = {f"bin/{tool}": "busybox" for tool in ("cat", "ln", "rm", "seq", "setsid", "sleep")}
    name = import_image(engine, request.param, {**files, "bin/busybox": busybox}, links=tools)
    yield name
    remove_image(engine, name)


def test_the_first_process_in_every_shell(
    engine: docker.APIClient, shell_image: str, tmp_path: Path
) -> None:
    variables = {f"S_{name.upper()}": value for name, value in SECRETS.items()}
    odd = {"UID": "7", "PPID": "7", "IFS": "ab", "OPTIND": "x", "PATH": "/bin:/odd", "PS4": "$(id)"}
    writes = [f'printf %s "$S_{name.upper()}" > {name}' for name in SECRETS]
    with bare_container(engine, shell_image, tmp_path) as bare:
        bare.container.wait_until_ready({**odd, **variables})
        assert bare.run("; ".join(writes)) == (ExitStatus(0), "")
        assert {one: (bare.workspace / one).read_bytes().decode() for one in SECRETS} == SECRETS
        assert (
            bare.run("echo $PATH; pwd; read x || echo none")[1] == "/bin:/odd\n/workspace\nnone\n"
        )
        ended = {command: bare.run(command)[0].code for command in ENDS}
        assert ended == ENDS
        long = "x" * 60_000
        assert bare.run(f"echo {long}")[1] == f"{long}\n", "once spelled, more than a pipe holds"
        assert bare.run("sh -c 'kill -9 $$'; exit 143")[0] == ExitStatus(143, 15)
        assert bare.run("true")[0] == ExitStatus(0)


DEAF = "trap '' TERM; echo deaf > deaf; while :; do sleep 0.1; done"


def test_what_does_not_want_to_end(
    engine: docker.APIClient, shell_image: str, tmp_path: Path
) -> None:
    """A polite command, a daemon that is deaf, and one that kills all others, our listener too."""
    with bare_container(engine, shell_image, tmp_path) as bare:
        container, deaf = bare.container, bare.workspace / "deaf"
        container.wait_until_ready({})
        container.start("trap 'echo saved; exit 4' TERM; echo up > up; while :; do sleep 0.1; done")
        wait_file(bare.workspace / "up")
        container.terminate()
        ended, printed = bare.finish()
        assert (ended, printed.splitlines()[-1]) == (ExitStatus(4), "saved")

        assert bare.run(f'setsid sh -c "{DEAF}" & exit 0')[0] == ExitStatus(0)
        wait_file(deaf)
        container.terminate()
        assert container.list_processes()
        container.kill()
        assert container.list_processes() == []
        assert bare.run("rm deaf") == (ExitStatus(0), "")

        container.start(f"kill -9 -1; {DEAF}")
        wait_file(deaf)
        container.kill()
        assert bare.finish()[0] == ExitStatus(137, 9)


def test_an_incomplete_order_is_not_followed(
    engine: docker.APIClient, base_image: str, tmp_path: Path
) -> None:
    """As when an agent is killed in the middle of one."""
    with bare_container(engine, base_image, tmp_path) as bare:
        bare.container.wait_until_ready({})
        half = format_order("run", "touch half.txt more.txt").partition(b"more")[0]
        bare.container._send(half + b"\n" + format_order("nonsense") + b"\n\n")
        assert bare.run("ls; echo told") == (ExitStatus(0), "told\n")


def test_another_process_with_its_pid_is_not_taken_for_the_container(
    engine: docker.APIClient, base_image: str, tmp_path: Path
) -> None:
    with bare_container(engine, base_image, tmp_path) as bare:
        bare.container.wait_until_ready({})
        record = bare.container.record
        other = ContainerRunner(replace(record, began=record.began + 1), bare.container._pipes)
        assert (other.list_processes(), other.gone) == ([], True)
        with pytest.raises(ContainerStartError, match="ended before a command could run"):
            other.wait_until_ready({})


def test_copies_need_cp(engine: docker.APIClient, base_image: str, tmp_path: Path) -> None:
    files = shell_files("dash")
    if files is None:
        pytest.skip("no dash on this machine")
    name = import_image(engine, "no-cp", files)
    with bare_container(engine, name, tmp_path) as bare:
        bare.container.wait_until_ready({})
        with pytest.raises(
            ContainerStartError, match=r"`cp` could not copy /b10 \(exit code 127: .*not found"
        ):
            bare.container.prepare_workdir("copy", "/b10")
    remove_image(engine, name)


@pytest.mark.extended
def test_a_gang_of_four_talks_to_its_leader(rig: DockerRig) -> None:
    """Plain sockets, the name that every node was told. Every line is answered."""
    serve = (
        "echo 'read -r line; echo \"$line\" >> /tmp/got; echo heard' > /tmp/answer; "
        "touch /tmp/got; nc -ll -p 5000 -e sh /tmp/answer & tail -f /tmp/got"
    )
    tell = (
        "until echo hello from $BT_NODE_RANK | nc -w 20 $BT_LEADER_ADDR 5000 | grep heard; "
        "do sleep 0.1; done"
    )
    leader = rig.substrate.leader_address(rig.job, 0)
    handles: list[DockerNodeHandle] = []
    for rank in range(4):
        told = {"BT_LEADER_ADDR": leader, "BT_NODE_RANK": str(rank)}
        command = tell if rank else serve
        handles.append(rig.launch(command, rank=rank, group_size=4, environment=told))
    assert [wait_over(handle).exit_code for handle in handles[1:]] == [0] * 3
    for rank in (1, 2, 3):
        wait_line(handles[0], f"hello from {rank}")
    assert len(rig.client.networks(names=[handles[0].network])) == 1

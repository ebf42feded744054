"""An error of guard or agent itself is the reason of the node's end, and is not retried."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.credentials.redaction import Redactor
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase, NodeStatus
from prefect_bt.node_agent.agent_failure import describe_failure, determine_failure_cause
from tests.node_agent.rig import JOB, Rig, all_lines, make_plan, wait_over


def assert_is_ours(handle: HostHandle, error: str) -> NodeStatus:
    status = wait_over(handle)
    assert status.phase is NodePhase.LOST
    assert error in status.reason
    found = diagnose_node(status)
    assert (found.cause, found.failure_class) == (Cause.AGENT_FAILED, FailureClass.DEPLOY)
    assert found.message.startswith("prefect-bt's own agent failed: ")
    assert error in found.message
    log = "\n".join(all_lines(handle))
    assert "Traceback" in log
    assert error in log
    return status


@pytest.mark.parametrize("file", ["plan.json", "node.json"])
@pytest.mark.parametrize(
    ("content", "error"),
    [("not JSON", "JSONDecodeError: "), ('{"rank": 0}', "TypeError: "), (None, "FileNotFound")],
)
def test_files_of_the_node_that_cannot_be_read(
    rig: Rig, file: str, content: str | None, error: str
) -> None:
    launcher = rig.substrate.launcher
    plan = replace(make_plan(rig.state, ("true",)), rank=1, group_size=2)
    handle = HostHandle(JobFolder(launcher.state_dir, JOB), 0, 1)
    lock = launcher.create_node_folder(plan)
    whole = handle.folder.record.read_bytes()
    process = launcher.start(handle.folder, (lock,))
    path = handle.folder.path / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    process.send_secrets({})
    os.close(lock)
    try:
        assert assert_is_ours(handle, error).rank == 1
    finally:
        handle.folder.record.write_bytes(whole)
        handle.remove()


@pytest.mark.parametrize("in_secret", [False, True])
def test_a_value_that_no_process_can_get(rig: Rig, in_secret: bool) -> None:
    value = "s3cr3t-\ud800"
    if in_secret:
        handle = rig.launch("true", secrets={"s": value}, secret_environment={"S": "s"})
    else:
        handle = rig.launch("true", environment={"S": value})
    status = assert_is_ours(handle, "UnicodeEncodeError: ")
    assert "s3cr3t" not in status.reason
    assert "s3cr3t" not in "\n".join(all_lines(handle))


def test_output_before_the_error_is_in_the_log(rig: Rig) -> None:
    status = rig.launch("echo first", "echo \udce9 \ud800; echo never")
    assert_is_ours(status, "UnicodeEncodeError: ")
    assert all_lines(status).index("first") < len(all_lines(status)) - 2


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), Cause.NODE_LOST),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), Cause.NODE_LOST),
        (MemoryError(), Cause.NODE_LOST),
        (OSError(errno.E2BIG, "Argument list too long"), Cause.AGENT_FAILED),
        (RecursionError(), Cause.AGENT_FAILED),
        (SystemExit(3), Cause.AGENT_FAILED),
    ],
)
def test_an_error_of_the_machine_is_no_error_of_ours(error: BaseException, cause: Cause) -> None:
    assert determine_failure_cause(error) is cause


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("builder error\n\nDebug source:\nGeneric {\n}"), "ValueError: builder error"),
        (SyntaxError("invalid syntax", ("a.py", 3, 1, "x = = 1")), "SyntaxError: invalid syntax"),
        (KeyError("hunter2hunter2"), "KeyError: '********'"),
    ],
)
def test_an_error_is_described_by_the_line_that_names_it(error: Exception, line: str) -> None:
    assert describe_failure(error, Redactor(["hunter2hunter2"])) == line

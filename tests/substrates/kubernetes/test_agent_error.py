"""What the end of the agent's container says of its cause."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.ledger.records import Cause, FailureClass, NodeStatus
from prefect_bt.substrates.kubernetes.node_status import lose
from prefect_bt.substrates.kubernetes.pods.pod_states import PodView, read_pod

from .recordings import pod_object

FRAMES = """Traceback (most recent call last):
  File "/src/prefect_bt/node_agent/pod/__main__.py", line 36, in <module>
    sys.exit(main(sys.argv[1:]))
             ^^^^^^^^^^^^^^^^^^
  File "/src/prefect_bt/object_store/bucket.py", line 65, in __init__
    self._connect()
"""
CUT = FRAMES[60:]
"""The kubelet keeps the last 2048 bytes."""
JOB_LINE = "1795660905374799970 RuntimeError: of a command\n"


def end(output: str, *, code: int = 1, name: str = "agent") -> PodView:
    ended = {"exitCode": code, "reason": "Error", "message": output}
    container: dict[str, Any] = {"name": name, "image": "a:1", "state": {"terminated": ended}}
    return read_pod(pod_object({"phase": "Failed", "containerStatuses": [container]}))


@pytest.mark.parametrize("name", ["agent", "weights"])
@pytest.mark.parametrize(
    ("output", "line"),
    [
        (f"{FRAMES}TypeError: no bucket\n", "TypeError: no bucket"),
        (f"{FRAMES}AssertionError\n", "AssertionError"),
        (f"{FRAMES}KeyError: 'x'\nadded by a note: see it\n", "KeyError: 'x'"),
        (f"{FRAMES}a.b.Unknown: Generic {{\n  source: None,\n}}.\n", "a.b.Unknown: Generic {"),
        (f"{CUT}ValueError: 1\nCause: 2\n}}\n", "ValueError: 1"),
        (f"{FRAMES}OSError: 1\n\nDuring handling:\n\n{FRAMES}TypeError: 2\n", "TypeError: 2"),
        (f"  source: None\nRuntimeError: the end\n{JOB_LINE}", "RuntimeError: the end"),
        (f"{FRAMES}{JOB_LINE}ValueError: 1\n{JOB_LINE}}}.\n", "ValueError: 1"),
    ],
)
def test_an_error_of_ours_is_named_by_its_line_and_not_retried(
    output: str, line: str, name: str
) -> None:
    problem = end(output, name=name).failure
    assert problem is not None
    assert problem.message == f"the container {name!r} ended with 1: {line}"
    status = lose(NodeStatus(0), problem, 9.0)
    found = diagnose_node(status)
    assert (found.cause, found.failure_class) == (Cause.AGENT_FAILED, FailureClass.DEPLOY)
    assert line in found.message


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("prefect_bt.errors.StoreError: s3://b failed: the connection was refused", "store_failed"),
        ("prefect_bt.errors.ObjectNotFound: gone", "store_failed"),
        ("obstore.exceptions.GenericError: Generic {\n    source: None\n}.", "store_failed"),
        ("botocore.exceptions.NoCredentialsError: Unable to locate", "store_failed"),
        ("OSError: [Errno 28] No space left on device", "node_lost"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "node_lost"),
        ("socket.gaierror: [Errno -2] Name or service not known", "node_lost"),
        ("MemoryError", "node_lost"),
    ],
)
def test_an_error_of_the_store_or_the_machine_is_infrastructure(error: str, cause: str) -> None:
    problem = end(f"{FRAMES}{error}\n").failure
    assert problem is not None
    assert (problem.cause, error.splitlines()[0].rstrip(".") in problem.message) == (cause, True)
    assert diagnose_node(lose(NodeStatus(0), problem, 9.0)).failure_class == "infrastructure"


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (f"{FRAMES}TypeError: no bucket\n", 137, "TypeError: no bucket"),
        ("exec: python: not found", 127, "exec: python: not found"),
        (JOB_LINE, 1, ""),
        ("", 1, ""),
    ],
)
def test_an_end_that_is_no_error_of_python_is_a_lost_node(
    output: str, code: int, said: str
) -> None:
    problem = end(output, code=code).failure
    assert problem is not None
    assert problem.cause is Cause.NODE_LOST
    assert problem.message == f"the container 'agent' ended with {code}" + (said and f": {said}")

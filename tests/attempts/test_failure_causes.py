"""How a node ended → cause, class, sentence: every row of the tables."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.attempts.failure_causes import (
    CAUSES,
    CAUSES_BY_SIGNAL,
    determine_cause,
    diagnose_cause,
    diagnose_error,
    diagnose_node,
    find_signal,
    format_signal,
)
from prefect_bt.errors import (
    DefinitionError,
    ObjectNotFound,
    PlanError,
    SecretError,
    SubstrateError,
)
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase, NodeStatus, Outcome
from prefect_bt.ledger.states import JobState

USER, INFRA = FailureClass.USER, FailureClass.INFRASTRUCTURE
OOM, DEPLOY = FailureClass.OUT_OF_MEMORY, FailureClass.DEPLOY
ENDED = NodeStatus(0, NodePhase.DONE, exit_code=1, command=0, started_at=10.0, ended_at=20.0)


@pytest.mark.parametrize(
    ("code", "cause", "failure"),
    [
        (1, Cause.COMMAND_FAILED, USER),
        (2, Cause.USAGE, USER),
        (3, Cause.COMMAND_FAILED, USER),
        (124, Cause.TIMED_OUT, USER),
        (125, Cause.COMMAND_FAILED, USER),
        (126, Cause.NOT_EXECUTABLE, USER),
        (127, Cause.NOT_FOUND, USER),
        (128, Cause.COMMAND_FAILED, USER),
        (129, Cause.TERMINATED, INFRA),
        (130, Cause.INTERRUPTED, USER),
        (131, Cause.SIGNALLED, USER),
        (132, Cause.ILLEGAL_INSTRUCTION, USER),
        (134, Cause.ABORTED, USER),
        (135, Cause.BUS_ERROR, USER),
        (136, Cause.ARITHMETIC_ERROR, USER),
        (137, Cause.KILLED, INFRA),
        (139, Cause.SEGMENTATION_FAULT, USER),
        (141, Cause.BROKEN_PIPE, USER),
        (143, Cause.TERMINATED, INFRA),
        (152, Cause.LIMIT_EXCEEDED, USER),
        (153, Cause.LIMIT_EXCEEDED, USER),
        (159, Cause.CALL_FORBIDDEN, USER),
        (200, Cause.COMMAND_FAILED, USER),
        (255, Cause.COMMAND_FAILED, USER),
    ],
)
def test_exit_codes(code: int, cause: Cause, failure: FailureClass) -> None:
    found = diagnose_node(replace(ENDED, exit_code=code))
    assert (found.cause, found.failure_class) == (cause, failure)
    assert found.description.startswith("start command 1 ")


@pytest.mark.parametrize("number", sorted({s.value for s in signal.Signals}))
def test_a_signal_and_its_shell_code_are_the_same(number: int) -> None:
    died = replace(ENDED, exit_code=128 + number, signal=number)
    passed_on = replace(ENDED, exit_code=128 + number)
    cause = CAUSES_BY_SIGNAL.get(number, Cause.SIGNALLED)
    assert determine_cause(died) is determine_cause(passed_on) is cause
    assert signal.Signals(number).name in diagnose_node(died).description


def test_every_exit_code_has_a_sentence() -> None:
    for code in range(256):
        sentence = diagnose_node(replace(ENDED, exit_code=code)).message
        assert sentence.endswith((".", "?")), code
        assert ".." not in sentence


def test_a_cause_from_a_substrate_needs_no_exit_code() -> None:
    status = NodeStatus(0, NodePhase.DONE, command=1, started_at=1.0, cause=Cause.KILLED)
    assert diagnose_node(status).description == "start command 2 left no exit code"


def test_numbers_that_are_no_signals() -> None:
    assert find_signal(replace(ENDED, exit_code=128)) is None
    assert find_signal(replace(ENDED, exit_code=255)) is None
    assert format_signal(9) == "SIGKILL"
    assert format_signal(99) == "signal 99"


@pytest.mark.parametrize(
    ("status", "cause", "failure"),
    [
        (replace(ENDED, exit_code=137, oom=True), Cause.OUT_OF_MEMORY, OOM),
        (NodeStatus(0, NodePhase.LOST, started_at=10.0), Cause.NODE_LOST, INFRA),
        (NodeStatus(0, NodePhase.LOST), Cause.NODE_LOST, INFRA),
        (NodeStatus(0, NodePhase.FLUSHING, started_at=10.0), Cause.NODE_LOST, INFRA),
        (replace(ENDED, exit_code=143, reason="orphaned"), Cause.ORPHANED, INFRA),
        (NodeStatus(0, NodePhase.DONE, exit_code=125), Cause.STAGING_FAILED, INFRA),
        (NodeStatus(0, NodePhase.DONE, started_at=1.0), Cause.UNKNOWN, INFRA),
        # What a substrate knows comes before what an exit code says.
        (replace(ENDED, exit_code=143, cause=Cause.PREEMPTED), Cause.PREEMPTED, INFRA),
        (NodeStatus(0, NodePhase.LOST, cause=Cause.EVICTED), Cause.EVICTED, INFRA),
        (NodeStatus(0, cause=Cause.IMAGE_NOT_FOUND), Cause.IMAGE_NOT_FOUND, DEPLOY),
    ],
)
def test_states(status: NodeStatus, cause: Cause, failure: FailureClass) -> None:
    found = diagnose_node(status)
    assert (found.cause, found.failure_class) == (cause, failure)


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_class_and_a_cure(cause: Cause) -> None:
    remedy = CAUSES[cause]
    assert remedy.remedy.endswith((".", "?"))
    assert not remedy.description.endswith(".")
    assert remedy.description == remedy.description.strip()
    assert diagnose_cause(cause, "x").message == f"x. {remedy.remedy}"
    if cause is not Cause.OUT_OF_MEMORY:
        assert diagnose_node(replace(ENDED, cause=cause)).message


def test_which_causes_are_of_the_job_itself_and_never_retried() -> None:
    assert {cause for cause, remedy in CAUSES.items() if remedy.failure_class is DEPLOY} == {
        *(Cause.ADMISSION_DENIED, Cause.FORBIDDEN, Cause.REGISTRY_REFUSED, Cause.SECRET_MISSING),
        *(Cause.IMAGE_NOT_FOUND, Cause.IMAGE_UNUSABLE, Cause.CONFIGURATION, Cause.AGENT_FAILED),
    }


@pytest.mark.parametrize(
    ("error", "cause", "failure"),
    [
        (PlanError(["no room for 9 GPUs"]), Cause.CONFIGURATION, DEPLOY),
        (DefinitionError("wrong"), Cause.CONFIGURATION, DEPLOY),
        (SecretError(["t"], ["the environment"]), Cause.SECRET_MISSING, DEPLOY),
        (ObjectNotFound("gone"), Cause.STORE_FAILED, INFRA),
        (SubstrateError("no", substrate="local"), Cause.LAUNCH_FAILED, INFRA),
        (OSError("no more processes"), Cause.LAUNCH_FAILED, INFRA),
    ],
)
def test_errors_before_a_node_runs(error: Exception, cause: Cause, failure: FailureClass) -> None:
    found = diagnose_error(error)
    assert (found.cause, found.failure_class) == (cause, failure)
    assert found.description == str(error).rstrip(".")


def test_the_nodes_own_words_are_kept_when_it_could_not_be_set_up() -> None:
    status = NodeStatus(0, NodePhase.DONE, exit_code=125, reason="staging failed: no space left.")
    message = diagnose_node(status).message
    assert message.startswith("it could not be set up: staging failed: no space left. ")


def test_the_remedy_of_exit_code_1_mentions_torchrun() -> None:
    assert "torchrun" in diagnose_node(ENDED).remedy
    assert "torchrun" not in diagnose_node(replace(ENDED, exit_code=3)).remedy


def test_the_remedy_of_127_names_scripts_and_their_interpreters() -> None:
    remedy = diagnose_node(replace(ENDED, exit_code=127)).remedy
    for word in ("command", "script", "interpreter", "PATH", "CRLF"):
        assert word in remedy


def test_a_real_shell_returns_the_codes_of_the_table(tmp_path: Path) -> None:
    """The table's numbers are those of /bin/sh here, not of a book."""
    plain, windows, python = (tmp_path / name for name in ("plain", "windows", "python"))
    plain.write_text("echo\n")
    windows.write_bytes(b"#!/bin/sh\r\necho hi\r\n")
    windows.chmod(0o755)
    python.write_text("#!/usr/bin/python9\n")
    python.chmod(0o755)
    said = {
        "exec /nowhere/at-all": Cause.NOT_FOUND,
        f"{windows}": Cause.NOT_FOUND,
        f"{python}": Cause.NOT_FOUND,
        "bash /nowhere/at-all.sh": Cause.NOT_FOUND,
        f"{plain}": Cause.NOT_EXECUTABLE,
        "timeout 0.05 sleep 3000": Cause.TIMED_OUT,
        f"{sys.executable} -c 'import os; os.abort()'": Cause.ABORTED,
        "sleep --no-such-option": Cause.COMMAND_FAILED,
        "echo 'unclosed": Cause.USAGE,
        "kill -SEGV $$": Cause.SEGMENTATION_FAULT,
    }
    for command, cause in said.items():
        code = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
        shown = code.returncode if code.returncode >= 0 else 128 - code.returncode
        assert determine_cause(replace(ENDED, exit_code=shown)) is cause, command


def test_records_of_other_releases_load() -> None:
    old = {"attempt": 0, "state": "TRAINING_JOB_FAILED", "failure": "user", "exit_code": 3}
    assert codec.decode(Outcome, old) == Outcome(0, JobState.FAILED, failure=USER, exit_code=3)
    newer = {**old, "cause": "meteorite", "cure": "Wait.", "unheard_of": 1}
    assert codec.decode(Outcome, newer).cause is Cause.UNKNOWN
    assert codec.decode(NodeStatus, {"rank": 1}).cause is None
    kept = Outcome(0, JobState.FAILED, cause=Cause.KILLED, cure="c.", failed_at=1.5)
    assert codec.decode(Outcome, json.loads(codec.dumps(kept))) == kept

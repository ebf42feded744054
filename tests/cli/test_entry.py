"""The process of a job is started before the words are read: only where there will be one."""

import time

import psutil
import pytest

from prefect_bt.cli.entry import will_start_job


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["push", "config.py"], True),
        (["push", "config.py", "--tail"], True),
        (["recreate", "--job-id", "abc1234"], True),
        (["retry", "--job-id", "abc1234"], True),
        (["push", "config.py", "--dry-run"], False),
        (["push", "--help"], False),
        (["push", "config.py", "--deployment", "train/x"], False),
        (["push", "config.py", "--deployment=train/x"], False),
        (["view"], False),
        ([], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_which_commands_start_a_job(words: list[str], starts: bool) -> None:
    assert will_start_job(words) is starts


def keepers(state: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("PREFECT_BT_STATE_DIR") == state
            if ours and "prefect_bt.supervisor." in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_push_that_is_refused_leaves_no_process_behind(cli) -> None:
    assert cli("push", "no-such-config.py").code == 1
    deadline = time.monotonic() + 200
    while keepers(cli.env["PREFECT_BT_STATE_DIR"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert keepers(cli.env["PREFECT_BT_STATE_DIR"]) == []

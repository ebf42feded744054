"""Make the pictures of this folder: pages of a real Prefect server in a real browser.

`make screens` starts a server and a worker in a temporary folder, runs a job and one whose rank
fails, and stores a PNG of each page. It needs Chromium (`make browser`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect_bt.local_server.password import CLIENT_VARIABLE
from tests.browser import Page, browser
from tests.e2e.conftest import Machine, call, serve, until
from tests.e2e.ui_pages import UIS, PrefectUI

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 1180, 820
MAX_BYTES = 150_000
_HIDE_MISSING_PICTURES = """
[...document.images].filter((one) => !one.naturalWidth).forEach((one) => one.remove())
"""
"""Logos of block types are at Prefect's host, which the machine may not reach."""
_CHOOSE_NEWEST_FIRST = """
ui.button("Newest to oldest") || (ui.press(
  [...document.querySelectorAll("[role=option]")].find((one) => one.innerText.includes("Newest to"))
  ?? ui.button("Oldest to newest")), false)
"""
"""Opens the list and chooses, one step each time; the page keeps the choice for other runs."""
TRAINS = """
for step in $(seq 1 600); do
  echo "step $step loss $(awk "BEGIN { printf \\"%.3f\\", 4 / (1 + $step / 20) }")"
  if [ $((step % 10)) = 0 ]; then
    mkdir "$BT_CHECKPOINT_DIR/checkpoint-$step"
    echo "weights of step $step" > "$BT_CHECKPOINT_DIR/checkpoint-$step/weights.txt"
  fi
  sleep 1
done
"""
FAILS = """
echo "rank $BT_NODE_RANK of $BT_GROUP_SIZE: loading the data"
sleep 3
if [ "$BT_NODE_RANK" = 1 ]; then
  exec python3 -c "raise FileNotFoundError('data/train-00001.parquet')"
fi
sleep 60
"""


class Screens:
    """Takes pictures of the pages of one server."""

    def __init__(self, machine: Machine, page: Page) -> None:
        self._machine, self._page = machine, page
        page.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
        )
        self._ui = PrefectUI(page, machine.api_url.removesuffix("/api"), UIS["react"])
        self._ui.sign_in(machine.api[CLIENT_VARIABLE])

    def take_run(self, name: str, job_id: str, state: str, line: str) -> None:
        """Take the page of the job's flow run in the state, once the server has the log line."""
        run = until(lambda: self._find_run(job_id, line), seconds=60, what=f"{line!r} in the log")
        self._open(f"/runs/flow-run/{run}", state, "Level: All")
        self._ui.wait_for(_CHOOSE_NEWEST_FIRST)
        self._page.run("window.scrollTo(0, 0)")
        self._take(name)

    def _find_run(self, job_id: str, line: str) -> str:
        for run in self._machine.ledger.runs.list(job_id):
            chosen = {"flow_run_id": {"any_": [run.flow_run_id]}}
            logs = call(self._machine, "POST", "logs/filter", logs=chosen, sort="TIMESTAMP_DESC")
            if any(line in log["message"] for log in logs):
                return run.flow_run_id
        return ""

    def take_form(self, name: str, slug: str, *texts: str) -> None:
        """Take the form in which a block of the type is created."""
        self._open(f"/blocks/catalog/{slug}/create", *texts)
        self._take(name)

    def _open(self, path: str, *texts: str) -> None:
        shows = [f"document.body.innerText.includes({text!r})" for text in texts]
        self._ui.open(path, " && ".join([*shows, "ui.isQuiet()"]))

    def _take(self, name: str) -> None:
        time.sleep(2)  # the page draws its graph
        self._page.run(_HIDE_MISSING_PICTURES)
        png = b64decode(self._page.call("Page.captureScreenshot", format="png")["data"])
        assert len(png) < MAX_BYTES, f"{name} has {len(png)} bytes"
        (FOLDER / f"{name}.png").write_bytes(png)


@contextmanager
def running_job(machine: Machine) -> Iterator[str]:
    """Run a job that has committed a checkpoint, until the block ends."""
    config = machine.folder(TRAINS, project="stories", nodes=2)
    job_id = machine.push(config, "--job-name", "tiny-lm")["id"]
    try:
        until(lambda: machine.checkpoints(job_id), seconds=120, what="a checkpoint")
        yield job_id
    finally:
        machine.run("stop", "--job-id", job_id)


def main() -> None:
    with tempfile.TemporaryDirectory() as root, serve(Path(root)) as environment:
        machine = Machine(Path(root), environment)
        with browser(f"--window-size={WIDTH},{HEIGHT}", "--hide-scrollbars") as page:
            screens = Screens(machine, page)
            with running_job(machine) as job_id:
                screens.take_run("running-job", job_id, "Running", "committed checkpoint-10")
            config = machine.folder(FAILS, project="stories", nodes=2)
            _, failed = machine.push_wait(config, "--job-name", "missing-data")
            screens.take_run("failed-rank", failed["id"], "Failed", "FileNotFoundError")
            screens.take_form("block-form", "prefect-bt-compute", "GPU type")


if __name__ == "__main__":
    sys.exit(main())

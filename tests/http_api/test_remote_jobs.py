"""Jobs of a server from a laptop: follow, stop and push them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from prefect_bt import codec
from prefect_bt.definitions import load_training_project
from prefect_bt.errors import (
    NotFoundError,
    PrefectBtError,
    ServerError,
    StateError,
    StoreError,
    UsageError,
)
from prefect_bt.job_service import http_service, server_connection
from prefect_bt.job_service.http_service import HttpJobs
from prefect_bt.job_service.protocol import LogQuery
from prefect_bt.job_service.remotes import Server
from prefect_bt.job_service.run_options import RunOptions
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.planning.plan import GangPlan
from tests.cli.conftest import RUNNING, Shop
from tests.http_api.served import Api


def connect(api: Api, warnings: list[str] | None = None, url: str = "") -> HttpJobs:
    told = [] if warnings is None else warnings
    return HttpJobs(Server("remote 'ours'", url or api.url, api.key), warn=told.append)


def finish(shop: Shop, record: JobRecord) -> None:
    shop.ledger.end_attempt(record.id, Outcome(0, JobState.COMPLETED))
    shop.ledger.append_event(record.id, JobState.COMPLETED)


def texts(lines: Any) -> list[str]:
    return [one.line.message for one in lines if one and one.line.rank >= 0]


def test_a_followed_log_has_every_line_once_and_ends_with_the_job(api: Api, shop: Shop) -> None:
    record = shop.job("tiny", *RUNNING)
    shop.ledger.begin_attempt(record.id)
    shop.log(record, ["first"])
    lines = connect(api).read_lines(record.id, LogQuery(follow=True))
    seen = [next(lines) for _ in range(4)]
    shop.log(record, ["first", "second", "third"])
    finish(shop, record)
    assert texts([*seen, *lines]) == ["first", "second", "third"]


class CuttingProxy(ThreadingHTTPServer):
    """Passes requests on, and cuts the first `cuts` answers after some bytes."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Proxied)
        self.target, self.cuts, self.after, self.seen = target, 1, 200, list[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Proxied(BaseHTTPRequestHandler):
    server: CuttingProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        headers = {"Authorization": self.headers["Authorization"]}
        url = f"{self.server.target}{self.path}"
        with httpx.stream("GET", url, headers=headers, timeout=60) as answer:
            self.send_response(answer.status_code)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            sent = 0
            for data in answer.iter_bytes(64):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                sent += len(data)
                if self.server.cuts and sent > self.server.after:
                    self.server.cuts -= 1
                    self.close_connection = True
                    self.wfile.flush()
                    self.connection.close()
                    return
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def proxy(api: Api) -> Iterator[CuttingProxy]:
    with CuttingProxy(api.url) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_followed_log_goes_on_after_a_cut_connection(
    api: Api, shop: Shop, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_service, "_POLL_INTERVAL", 0.01)
    record = shop.job("tiny", *RUNNING)
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [f"line {n}" for n in range(30)])
    finish(shop, record)
    proxy.cuts, warnings = 3, list[str]()
    jobs = connect(api, warnings, proxy.url)
    lines = jobs.read_lines(record.id, LogQuery(follow=True))
    assert texts(lines) == [f"line {n}" for n in range(30)]
    assert len(proxy.seen) == 4
    assert warnings[0].startswith("This continues when the server answers again")


def test_a_log_that_is_cut_is_an_error(api: Api, shop: Shop, proxy: CuttingProxy) -> None:
    record = shop.job("tiny", *RUNNING)
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [f"line {n}" for n in range(30)])
    with pytest.raises(StoreError, match="does not answer"):
        list(connect(api, url=proxy.url).read_lines(record.id, LogQuery()))


def test_a_range_that_is_cut_is_read_again(
    api: Api, shop: Shop, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "_REPEAT_DELAYS", (0.01, 0.01))
    record = shop.job("tiny", *RUNNING)
    shop.commit(record, "checkpoint-1", {"model.bin": b"0123456789" * 100})
    jobs = connect(api, url=proxy.url)
    proxy.after = 1_000_000
    [entry] = jobs.list_files(record.id, [])["files"].values()
    proxy.after, proxy.cuts = 200, 2
    data = jobs.open_objects(record.id).get_range(entry["key"], start=0, length=1000)
    assert data == b"0123456789" * 100
    proxy.cuts = 3
    with pytest.raises(StoreError, match="does not answer"):
        jobs.open_objects(record.id).get_range(entry["key"], start=0, length=1000)


@pytest.mark.parametrize(
    "key", ["projects/x/jobs/y/job.json", "{prefix}/job.json", "{prefix}/objects/../job.json"]
)
def test_only_checkpoint_files_of_the_job_are_served(api: Api, shop: Shop, key: str) -> None:
    record = shop.job("tiny", *RUNNING)
    shop.commit(record, "checkpoint-1", {"model.bin": b"0"})
    jobs = connect(api)
    [entry] = jobs.list_files(record.id, [])["files"].values()
    prefix = entry["key"].partition("/objects/")[0]
    with pytest.raises((NotFoundError, StoreError)):
        jobs.open_objects(record.id).get_range(key.format(prefix=prefix), start=0, length=9)


def test_a_redirect_is_not_followed(api: Api) -> None:
    keys = list[str]()

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(302 if self.path.startswith("/prefect-bt") else 200)
            self.send_header("Location", f"http://localhost:{server.server_port}/other")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ServerError, match="answers 302 and no message"):
            connect(api, url=f"http://127.0.0.1:{server.server_port}").read_overview()
        server.shutdown()
    assert keys == [f"Api-Key {api.key}"]


def test_a_view_is_one_request(api: Api, shop: Shop, proxy: CuttingProxy) -> None:
    record = shop.job("tiny", *RUNNING)
    proxy.cuts, jobs = 0, connect(api, url=proxy.url)
    jobs.read_overview()
    jobs.describe_job(record.id)
    jobs.list_jobs("tiny", 50)
    assert len(proxy.seen) == 3


def test_a_job_is_stopped_by_the_name_of_the_key(api: Api, shop: Shop) -> None:
    record, jobs = shop.job("tiny", *RUNNING), connect(api)
    assert "it is stopped" in jobs.stop(record.id)
    assert jobs.wait_for_end(record.id) is JobState.STOPPED
    jobs.cancel_runs(record.id)
    assert jobs.read_end(record.id)["message"] == "Stopped by tester."
    with pytest.raises(StateError, match="has already ended"):
        jobs.stop(record.id)


def test_unknown_keys_of_a_request_and_of_an_answer_are_ignored(api: Api, shop: Shop) -> None:
    record = shop.job("tiny", *RUNNING)
    path = f"/prefect-bt/v1/jobs/{record.id}"
    assert api.get(path, params={"newer": "1"})["result"]["id"] == record.id
    assert "result" in api.post(f"{path}/stop", {"abandoned": False, "newer": 1})


def test_an_artifact_that_is_none_is_refused(api: Api) -> None:
    body = {"training_project": {}, "artifact": {"": ""}}
    answer = api("POST", "/prefect-bt/v1/jobs", json=body)
    assert (answer.status_code, "artifact" in answer.text) == (400, True)


@pytest.mark.parametrize("key", ["", "wrong", f"prefect-bt-abcdefg-{'0' * 40}"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "overview"),
        ("GET", "queue"),
        ("GET", "jobs"),
        ("PUT", "workspaces"),
        ("POST", "jobs"),
        ("POST", "plan"),
        ("POST", "jobs/{id}/stop"),
        ("GET", "jobs/{id}/lines"),
        ("GET", "jobs/{id}/object?key=a&start=0&length=1"),
    ],
)
def test_nothing_is_answered_without_a_key(
    api: Api, shop: Shop, key: str, method: str, path: str
) -> None:
    record = shop.job("tiny", *RUNNING)
    answer = api(method, f"/prefect-bt/v1/{path.format(id=record.id)}", key=key)
    assert answer.status_code == 401
    assert answer.json()["message"].startswith("The request has no valid API key.")
    assert shop.ledger.controls.find_stop_request(record.id) is None


CONFIG = """
from truss_train import definitions as d
compute = d.Compute(accelerator={accelerator})
runtime = d.Runtime(start_commands=["cat data.txt"], environment_variables={{"A": "1"}})
job = d.TrainingJob(image=d.Image(base_image="python:3.11"), runtime=runtime, compute=compute)
project = d.TrainingProject(name="pushed", job=job)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/data.txt").write_text("data from the laptop\n")
    path = tmp_path / "code/config.py"
    path.write_text(CONFIG.format(accelerator=None))
    return path


def test_a_plan_of_the_server_has_the_files_of_the_laptop(api: Api, config: Path) -> None:
    project = load_training_project(config)
    options = RunOptions(max_run_time="5m")
    document = connect(api).plan(project, config.parent, options)
    plan = codec.decode(GangPlan, document)
    assert plan.max_run_time == 300
    assert document["workspace"]["file_count"] == 2
    assert api.ledger.projects.list() == []


def test_a_job_that_cannot_run_is_not_uploaded(api: Api, config: Path) -> None:
    config.write_text(CONFIG.format(accelerator="'H100:8'"))
    project = load_training_project(config)
    with pytest.raises(PrefectBtError, match="This job cannot be planned"):
        connect(api).push(project, config.parent, RunOptions())
    assert api.ledger.list_jobs() == []
    assert not api.site.uploads._folder.exists()


@pytest.mark.parametrize("option", ["here", "deployment"])
def test_options_of_this_machine_are_refused(api: Api, config: Path, option: str) -> None:
    options = RunOptions(**{option: "flow/x" if option == "deployment" else True})
    with pytest.raises(UsageError, match=f"--{option} does not work through remote 'ours'"):
        connect(api).push(load_training_project(config), config.parent, options)


def test_a_key_of_a_team_plans_for_its_team_only(api: Api, config: Path) -> None:
    project = load_training_project(config).model_copy(update={"team_name": "other"})
    jobs = HttpJobs(Server("remote 'ours'", api.url, api.team_key("research")))
    with pytest.raises(UsageError, match=r"refuses the key: .* gives no access to team 'other'"):
        jobs.plan(project, config.parent, RunOptions())


@pytest.mark.extended
def test_a_pushed_job_runs_with_the_files_of_the_laptop(api: Api, config: Path) -> None:
    counted = list[int]()

    def upload(size: int) -> nullcontext[Any]:
        assert size > 0
        return nullcontext(counted.append)

    jobs = HttpJobs(Server("remote 'ours'", api.url, api.key), upload=upload)
    document = jobs.push(load_training_project(config), config.parent, RunOptions())
    assert document["user"] == {"email": "tester"}
    assert sum(counted) > 0
    lines = texts(jobs.read_lines(document["id"], LogQuery(follow=True)))
    assert "data from the laptop" in lines
    assert jobs.wait_for_end(document["id"]) is JobState.COMPLETED
    copy = jobs.recreate(document["id"], RunOptions(), {"A": "2"})
    assert copy["environment_variables"]["A"] == "2"
    assert jobs.wait_for_end(copy["id"]) is JobState.COMPLETED

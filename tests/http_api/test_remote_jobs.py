"""What a laptop does with the jobs of a server: follow, stop and push them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from prefect_bt.errors import NotFoundError, ServerError, StateError, StoreError
from prefect_bt.job_service import http_service
from prefect_bt.job_service.http_service import HttpJobs
from prefect_bt.job_service.protocol import LogQuery
from prefect_bt.job_service.remotes import Server
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
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
    cuts = 1
    after = 200
    seen: list[str]


class _Proxied(BaseHTTPRequestHandler):
    server: CuttingProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        import httpx

        self.server.seen.append(self.path)
        headers = {"Authorization": self.headers["Authorization"]}
        with httpx.stream("GET", f"{self.server.target}{self.path}", headers=headers) as answer:  # type: ignore[attr-defined]
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
    with CuttingProxy(("127.0.0.1", 0), _Proxied) as server:
        server.seen = []
        server.target = api.url  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def url_of(proxy: CuttingProxy) -> str:
    return f"http://127.0.0.1:{proxy.server_address[1]}"


def test_a_followed_log_goes_on_after_a_cut_connection(
    api: Api, shop: Shop, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_service, "_POLL_INTERVAL", 0.01)
    record = shop.job("tiny", *RUNNING)
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [f"line {n}" for n in range(30)])
    finish(shop, record)
    proxy.cuts, warnings = 3, list[str]()
    jobs = connect(api, warnings, url_of(proxy))
    lines = jobs.read_lines(record.id, LogQuery(follow=True))
    assert texts(lines) == [f"line {n}" for n in range(30)]
    assert len(proxy.seen) == 4
    assert warnings[0].startswith("This continues when the server answers again")


def test_a_log_that_is_cut_is_an_error(api: Api, shop: Shop, proxy: CuttingProxy) -> None:
    record = shop.job("tiny", *RUNNING)
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [f"line {n}" for n in range(30)])
    with pytest.raises(StoreError, match="does not answer"):
        list(connect(api, url=url_of(proxy)).read_lines(record.id, LogQuery()))


def test_a_range_that_is_cut_is_read_again(
    api: Api, shop: Shop, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_service, "_REPEAT_DELAYS", (0.01, 0.01))
    record = shop.job("tiny", *RUNNING)
    shop.commit(record, "checkpoint-1", {"model.bin": b"0123456789" * 100})
    jobs = connect(api, url=url_of(proxy))
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


class _Redirect(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append(self.headers["Authorization"])  # type: ignore[attr-defined]
        self.send_response(302 if self.path.startswith("/prefect-bt") else 200)
        self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/other")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_a_redirect_is_not_followed(api: Api) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Redirect) as server:
        server.seen = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        jobs = connect(api, url=f"http://127.0.0.1:{server.server_address[1]}")
        with pytest.raises(ServerError, match="answers 302 and no message"):
            jobs.read_overview()
        assert server.seen == [f"Api-Key {api.key}"]  # type: ignore[attr-defined]
        server.shutdown()


def test_a_view_is_one_request(api: Api, shop: Shop, proxy: CuttingProxy) -> None:
    record = shop.job("tiny", *RUNNING)
    proxy.cuts, jobs = 0, connect(api, url=url_of(proxy))
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

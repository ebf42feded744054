"""Revisions change places, servers die and come back, and nobody who asks notices."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from prefect_bt.host.processes import ProcessIdentity, read_start_time
from prefect_bt.serving.router.process import stop_router
from prefect_bt.serving.router.rejections import RETRY_AFTER
from prefect_bt.serving.router.route import Route
from tests.ports import free_port
from tests.serving.router.machine import LONG, Deployment, Load, Upstream, listens, until


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("state"))
    deployment.ensure()
    yield deployment
    deployment.stop()


@pytest.fixture
def rolled(router: Deployment) -> Deployment:
    """Its router runs, and has no route yet."""
    router.place.delete_route()
    assert (router.status().in_flight, router.status().waiting) == ({}, 0)
    return router


@pytest.mark.slow
def test_no_request_fails_while_revisions_change_places(
    rolled: Deployment, one: Upstream, two: Upstream
) -> None:
    rolled.place.write_route(one.route)
    load = Load(rolled)
    with load.running():
        for turn in range(20):
            asked = len(load.done)
            until(lambda asked=asked: len(load.done) >= asked + 8)
            rolled.place.write_route(two.route if turn % 2 == 0 else one.route)
    assert [fault for _, fault in load.done if fault] == []
    assert rolled.client().ask("/v1/models").json["revision"] == "1"
    until(lambda: rolled.status().in_flight == {})


@pytest.mark.slow
def test_no_request_fails_while_idle_revisions_are_ended(rolled: Deployment, one: Upstream) -> None:
    """As a roll-over does it: the route first, then the old server, once nothing is in flight."""
    old = Upstream(6)
    rolled.place.write_route(one.route)
    load = Load(rolled)
    try:
        with load.running():
            for _ in range(2):
                old.start()
                rolled.place.write_route(old.route)
                asked = len(load.done)
                until(lambda asked=asked: len(load.done) >= asked + 8)
                rolled.place.write_route(one.route)
                until(lambda: rolled.status().in_flight.get(6) is None)
                old.kill()
        assert [fault for _, fault in load.done if fault] == []
    finally:
        old.kill()


@pytest.mark.slow
def test_a_server_that_is_killed_is_waited_for(rolled: Deployment) -> None:
    mortal = Upstream(4)
    mortal.start()
    try:
        rolled.place.write_route(mortal.route)
        load = Load(rolled)
        with load.running():
            until(lambda: len(load.done) > 20)
            mortal.kill()
            killed = time.monotonic()
            until(lambda: rolled.status().waiting == load.clients)
            assert rolled.status().in_flight == {}
            mortal.start()
            asked = len(load.done)
            until(lambda: len(load.done) > asked + 20)
        faults = [(began, fault) for began, fault in load.done if fault]
        assert [fault for began, fault in faults if began > killed] == []
        # Those that it had taken while it died are lost with it, and are told so.
        assert all("upstream_lost" in f or "IncompleteRead" in f for _, f in faults), faults
    finally:
        mortal.kill()


def test_requests_wait_for_the_first_route(rolled: Deployment, one: Upstream) -> None:
    assert rolled.status().revision is None
    leaving = rolled.client()
    leaving.connection.request("POST", "/v1/chat/completions", b"{}")
    until(lambda: rolled.status().waiting == 1)
    leaving.close()
    until(lambda: rolled.status().waiting == 0)
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(rolled.client().chat) for _ in range(20)]
        until(lambda: rolled.status().waiting == 20)
        rolled.place.write_route(one.route)
        assert {future.result().status for future in asked} == {200}
    assert rolled.status().waiting == 0


def test_requests_that_wait_for_a_dead_server_go_to_the_next_revision(
    rolled: Deployment, two: Upstream
) -> None:
    rolled.place.write_route(Upstream(1).route)
    body = b"x" * 3_000_000
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(rolled.client().ask, "/digest", body) for _ in range(4)]
        until(lambda: rolled.status().waiting == 4)
        assert rolled.status().in_flight == {}
        rolled.place.write_route(two.route)
        answers = [future.result() for future in asked]
    assert [answer.json["size"] for answer in answers] == [len(body)] * 4
    assert {answer.headers["X-Prefect-Bt-Revision"] for answer in answers} == {"2"}


def test_a_request_that_waits_too_long_gets_an_error(deployment: Deployment) -> None:
    deployment.patience = 0.3
    deployment.ensure()
    answer = deployment.client().chat()
    assert (answer.status, answer.code) == (503, "no_upstream")
    assert answer.headers["Retry-After"] == str(RETRY_AFTER)
    assert "it has no route" in answer.json["error"]["message"]
    gone = f"http://127.0.0.1:{free_port()}"
    deployment.place.write_route(Route(1, gone))
    assert gone in deployment.client().chat().json["error"]["message"]


def test_what_was_sent_is_not_sent_again(rolled: Deployment, one: Upstream) -> None:
    mortal = Upstream(5)
    mortal.start()
    try:
        rolled.place.write_route(mortal.route)
        answer = rolled.client().ask("/die?me=5", b"a question")
        assert (answer.status, answer.code) == (502, "upstream_lost")
        mortal.start()
        with ThreadPoolExecutor(1) as pool:
            # What only reads is asked again.
            asked = pool.submit(rolled.client().ask, "/die?me=5")
            until(lambda: rolled.status().waiting == 1)
            rolled.place.write_route(one.route)
            assert asked.result().json == {"revision": "1"}
    finally:
        mortal.kill()


def test_the_next_owner_of_a_servers_address_is_not_asked(
    rolled: Deployment, one: Upstream, two: Upstream
) -> None:
    with subprocess.Popen(["sleep", "600"]) as server:
        process = ProcessIdentity(server.pid, read_start_time(server.pid))
        rolled.place.write_route(replace(one.route, process=process))
        assert rolled.client().chat().json["revision"] == "1"
        server.kill()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(rolled.client().chat)
        until(lambda: rolled.status().waiting == 1)
        rolled.place.write_route(two.route)
        assert asked.result().json["revision"] == "2"


def test_a_server_that_does_not_answer_in_http(rolled: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]
        rolled.place.write_route(Route(7, f"http://127.0.0.1:{port}"))
        asked = pool.submit(rolled.client().ask, "/v1/models")
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"220 mail ready\r\n\r\n")
            answer = asked.result()
    assert (answer.status, answer.code) == (502, "upstream_invalid")


def test_an_old_revision_keeps_what_it_has_begun(
    rolled: Deployment, one: Upstream, two: Upstream
) -> None:
    rolled.place.write_route(one.route)
    slow, quick = rolled.client(), rolled.client()
    assert quick.ask("/v1/models").json["revision"] == "1"
    answer = slow.hold()
    rolled.place.write_route(two.route)
    # The same kept connection, and the next request on it goes to the new revision.
    assert quick.ask("/v1/models").json["revision"] == "2"
    assert rolled.status().in_flight == {1: 1}
    one.release()
    assert answer.read().count(b'"revision": "1"') == 9
    until(lambda: rolled.status().in_flight == {})
    assert slow.ask("/v1/models").json["revision"] == "2"


def test_a_route_that_makes_no_sense_changes_nothing(
    rolled: Deployment, one: Upstream, two: Upstream
) -> None:
    place, client = rolled.place, rolled.client()
    place.write_route(one.route)
    assert client.ask("/v1/models").json["revision"] == "1"
    for garbage in (b"", b"{", b"[]", b'{"revision": 2}', b'{"revision": 2, "target": "ftp://x"}'):
        place.route_file.write_bytes(garbage)
        assert client.ask("/v1/models").json["revision"] == "1"
    place.write_route(two.route)
    assert client.ask("/v1/models").json["revision"] == "2"
    assert "the previous one stays in use" in place.log_file.read_text()


@pytest.mark.slow
def test_a_polite_end_lets_answers_finish(deployment: Deployment, one: Upstream) -> None:
    deployment.ensure(grace=LONG)
    deployment.place.write_route(one.route)
    answer = deployment.client().hold()
    port = deployment.place.read_listen_address().port
    stopping = threading.Thread(
        target=stop_router, args=(deployment.state_dir, deployment.name), kwargs={"grace": LONG}
    )
    stopping.start()
    until(lambda: not listens(port))
    assert deployment.place.is_running()
    one.release()
    assert answer.read().endswith(b"data: [DONE]\n\n")
    stopping.join()
    assert not deployment.place.is_running()

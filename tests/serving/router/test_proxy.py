"""What goes through a router comes out as it went in, as it comes, and only where it may."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from aiohttp.test_utils import make_mocked_request

from prefect_bt.serving.router.proxy import UpstreamUnavailable, forward_request, open_session
from prefect_bt.serving.router.request_body import BodyLimits, RequestBody
from prefect_bt.serving.router.route import Route
from tests.serving.router.machine import LONG, Client, Deployment, Upstream, until

MIB = 1024 * 1024


@pytest.fixture
def client(routed: Deployment):
    client = routed.client()
    yield client
    client.close()


def raw(deployment: Deployment, text: bytes) -> bytes:
    """What is answered to these bytes until the router closes."""
    listen = deployment.place.read_listen_address()
    with socket.create_connection((listen.host, listen.port), timeout=LONG) as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.slow
def test_an_answer_comes_back_with_the_revision_that_gave_it(client: Client) -> None:
    answer = client.ask("/v1/models")
    assert answer.status == 200
    assert answer.json == {"revision": "1", "data": [{"id": "checkpoint-1"}]}
    assert answer.headers["X-Prefect-Bt-Revision"] == "1"
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/facts", ""),
        ("/facts", "a=b%2Fc&a=%20+&=&%C3%A9"),
        ("/fa%63ts", "x"),
        ("/facts", "u=//x/.."),
    ],
)
def test_a_path_is_not_respelled(client: Client, path: str, query: str) -> None:
    told = client.ask(f"{path}?{query}" if query else path).json
    assert (told["raw"], told["query"]) == (path, query)


@pytest.mark.parametrize("path", ["/reset", "/load_model", "/v1/unload_lora_adapter", "/sleep/"])
def test_what_changes_the_server_is_not_passed_on(client: Client, path: str) -> None:
    refused = client.ask(path, {})
    assert refused.status == 403
    assert "would change the server" in refused.json["error"]["message"]


def test_headers_pass_but_those_of_one_connection(client: Client) -> None:
    sent = {"X-Trace": "t-1", "TE": "trailers", "X-Hop": "1", "Connection": "x-hop, keep-alive"}
    headers = dict(client.ask("/facts", **sent).json["headers"])
    assert headers["x-trace"] == "t-1"
    assert headers["host"] == client.connection.host + f":{client.connection.port}"
    assert not {"te", "x-hop", "user-agent", "accept"} & set(headers)


def test_redirects_and_cookies_are_the_clients_matter(client: Client) -> None:
    answer = client.begin("/redirect")
    assert (answer.status, answer.headers["Location"]) == (307, "/v1/models")
    assert answer.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    answer.read()
    assert "cookie" not in dict(client.ask("/facts").json["headers"])


def test_a_head_has_a_length_and_no_body(client: Client) -> None:
    answer = client.ask("/v1/models", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0
    assert client.ask("/v1/models").status == 200


def test_an_error_of_the_server_is_its_own(client: Client) -> None:
    answer = client.ask("/nowhere")
    assert (answer.status, answer.json) == (404, {"error": {"message": "no such path"}})


@pytest.mark.slow
@pytest.mark.parametrize("length_known", [True, False])
def test_a_large_body_goes_up_whole(client: Client, length_known: bool) -> None:
    body = os.urandom(20 * MIB)
    parts = body if length_known else iter([body[:MIB], body[MIB:]])
    told = client.ask("/digest", parts).json
    assert told == {"digest": hashlib.sha256(body).hexdigest(), "size": len(body)}


def test_a_large_body_goes_both_ways_at_once(routed: Deployment) -> None:
    """The client reads while it sends: one that only sends would fill every buffer on the way."""
    body = os.urandom(20 * MIB)
    head = f"POST /echo HTTP/1.1\r\nHost: router\r\nContent-Length: {len(body)}\r\n\r\n"
    listen = routed.place.read_listen_address()
    with (
        socket.create_connection((listen.host, listen.port), timeout=LONG) as connection,
        ThreadPoolExecutor(1) as pool,
    ):
        sent = pool.submit(connection.sendall, head.encode() + body)
        answer = http.client.HTTPResponse(connection, method="POST")
        answer.begin()
        assert answer.read() == body
        sent.result()


def test_compressed_answers_stay_compressed(client: Client) -> None:
    body = b"\x1f\x8b not really gzip"
    answer = client.ask("/echo", body, **{"Content-Encoding": "gzip"})
    assert (answer.status, answer.body) == (200, body)


def test_a_stream_arrives_as_it_is_made(routed: Deployment, client: Client, one: Upstream) -> None:
    answer = client.hold()
    # The first token is here, and the second one is not made yet.
    assert routed.status().in_flight == {1: 1}
    assert routed.client().ask("/facts").json["active"]["now"] == 1
    one.release()
    assert answer.read().endswith(b'"token": 9}\n\ndata: [DONE]\n\n')
    until(lambda: routed.status().in_flight == {})


def test_a_client_that_leaves_ends_its_request(routed: Deployment) -> None:
    other, leaving = routed.client(), routed.client()
    before = other.ask("/facts").json["active"]["left"]
    answer = leaving.hold()
    answer.close()
    leaving.close()
    until(lambda: other.ask("/facts").json["active"] == {"now": 0, "left": before + 1})
    until(lambda: routed.status().in_flight == {})


def test_many_at_once(routed: Deployment) -> None:
    def ask(number: int) -> tuple[int, str]:
        answer = routed.client().chat(say=str(number), pause=0.2)
        return answer.status, answer.json["said"]

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(ask, range(100))) == [(200, str(n)) for n in range(100)]
    until(lambda: routed.status().in_flight == {})


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET http://elsewhere/facts HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),
        (b"nonsense\r\n\r\n", 400),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close, upgrade\r\n"
            b"Upgrade: websocket\r\n\r\n",
            501,
        ),
        (
            b"POST /digest HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            400,
        ),
    ],
)
def test_odd_requests(routed: Deployment, text: bytes, status: int) -> None:
    assert raw(routed, text).split(b" ", 2)[1] == str(status).encode()


def test_a_malformed_request_is_not_quoted_in_the_log(routed: Deployment) -> None:
    for bad in (b"Authorization : Bearer sesame", b"Authorization: Bearer \x01sesame"):
        assert b" 400 " in raw(routed, b"GET / HTTP/1.1\r\nHost: x\r\n" + bad + b"\r\n\r\n")
    assert "sesame" not in routed.place.log_file.read_text()


@pytest.mark.slow
def test_an_answer_that_breaks_off_is_seen_to_break_off(deployment: Deployment) -> None:
    mortal = Upstream(3)
    mortal.start()
    try:
        deployment.ensure()
        deployment.place.write_route(mortal.route)
        with pytest.raises(http.client.IncompleteRead) as caught:
            deployment.client().ask("/die?me=3&after=1")
        assert caught.value.partial == b"part"
        until(lambda: deployment.status().in_flight == {})
    finally:
        mortal.kill()


@dataclass(frozen=True)
class GivenUpMeanwhile(Route):
    """Of a server that ends, and whose address is another's, before the connection stands."""

    looks = iter((False, True))

    @property
    def is_server_dead(self) -> bool:
        return next(self.looks)


def test_nothing_is_sent_to_the_next_owner_of_an_address() -> None:
    async def passed_on(route: Route) -> None:
        async with open_session() as session:
            with pytest.raises(UpstreamUnavailable):
                request = make_mocked_request("GET", "/v1/models")
                await forward_request(session, request, RequestBody(BodyLimits(), request), route)

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(LONG)
        asyncio.run(passed_on(GivenUpMeanwhile(1, f"http://127.0.0.1:{stranger.getsockname()[1]}")))
        connection, _ = stranger.accept()
        with connection:
            assert connection.recv(1) == b"", "it was closed without a byte"

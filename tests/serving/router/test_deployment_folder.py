"""The files that a router and those who steer it share."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from prefect_bt.errors import ServerError
from prefect_bt.host.processes import ProcessIdentity
from prefect_bt.serving.router.deployment_folder import ListenAddress, RouterFolder
from prefect_bt.serving.router.reloaded_file import ReloadedFile
from prefect_bt.serving.router.route import Route, parse_route
from prefect_bt.serving.router.router import _is_loopback, _parse_key

TARGET = "http://127.0.0.1:20011"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("qwen", "qwen"),
        ("a/../b", "a%2F..%2Fb"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("a.b", "a.b"),
        ("ü x", "%C3%BC%20x"),
    ],
)
def test_any_name_is_a_folder_of_its_own(tmp_path: Path, name: str, folder: str) -> None:
    place = RouterFolder.for_deployment(tmp_path, name)
    assert place.path == tmp_path / "deployments" / folder
    place.write_route(Route(1, TARGET))
    assert list(RouterFolder.iter_all(tmp_path)) == [place]


@pytest.mark.parametrize("left", [b"", b"ab\n", b"00" * 31, b"xy" * 32, b"\xff" * 64])
def test_a_damaged_secret_of_the_engines_is_replaced(tmp_path: Path, left: bytes) -> None:
    place = RouterFolder.for_deployment(tmp_path, "stories")
    place.create()
    file = place.path / "engine.secret"
    file.write_bytes(left)
    first = place.ensure_engine_secret()
    assert len(first) == 32
    file.write_bytes(left)
    assert place.ensure_engine_secret() != first, "it is random"
    first = place.ensure_engine_secret()
    assert place.ensure_engine_secret() == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 34, "\udcff"])
def test_a_name_without_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerError, match="cannot be called"):
        RouterFolder.for_deployment(tmp_path, name)


def test_files_are_kept_from_others_and_read_back(tmp_path: Path) -> None:
    place = RouterFolder.for_deployment(tmp_path, "m")
    assert (place.read_route(), place.read_listen_address(), place.read_process()) == (
        None,
        None,
        None,
    )
    assert not place.is_running()
    route = Route(3, TARGET, ("checkpoint-10", "ü"), {}, ProcessIdentity(7, 19))
    place.write_route(route)
    place.write_listen_address(ListenAddress("::1", 19000))
    assert (place.read_route(), place.read_listen_address()) == (route, ListenAddress("::1", 19000))
    assert {stat.S_IMODE(p.stat().st_mode) for p in place.path.glob("*.json")} == {0o600}
    place.delete_route()
    assert place.read_route() is None


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("box.local", "http://box.local:1"),
    ],
)
def test_an_address_is_one_that_this_machine_can_use(host: str, address: str) -> None:
    assert ListenAddress(host, 1).address == address


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b'{"target": "http://x:1"}',
        b'{"revision": true, "target": "http://x:1"}',
        b'{"revision": 1, "target": "http://x:1", "process": 7}',
        b'{"revision": "1", "target": "http://x:1"}',
        b'{"revision": 1, "target": null}',
        b'{"revision": 1, "target": "x:1"}',
        b'{"revision": 1, "target": "http://"}',
        b'{"revision": 1, "target": "http://x:99999"}',
        b'{"revision": 1, "target": "http://x:1/v1"}',
        b'{"revision": 1, "target": "http://u:p@x:1"}',
        b'{"revision": 1, "target": "http://x:1", "models": "a"}',
        b'{"revision": 1, "target": "http://x:1", "models": [1]}',
    ],
)
def test_an_invalid_route_is_an_error(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_route(text)
    place = RouterFolder.for_deployment(tmp_path, "m")
    place.create()
    place.route_file.write_bytes(text)
    with pytest.raises(ServerError, match="route of deployment 'm' cannot be read"):
        place.read_route()


def test_a_bad_route_is_not_written(tmp_path: Path) -> None:
    place = RouterFolder.for_deployment(tmp_path, "m")
    with pytest.raises(ValueError, match="nowhere"):
        place.write_route(Route(1, "nowhere"))
    assert not place.route_file.exists()


def test_the_last_valid_route_holds_and_an_error_is_logged_once(tmp_path: Path) -> None:
    logged: list[str] = []
    place = RouterFolder.for_deployment(tmp_path, "m")
    route = ReloadedFile(place.route_file, parse_route, logged.append)
    assert route.read() is None
    place.write_route(Route(1, TARGET))
    assert [route.read(), route.read()] == [Route(1, TARGET)] * 2
    place.route_file.write_text("{")
    assert [route.read(), route.read()] == [Route(1, TARGET)] * 2
    place.write_route(Route(2, TARGET))
    assert route.read() == Route(2, TARGET)
    place.delete_route()
    assert route.read() is None and not route.is_corrupt
    (said,) = logged
    assert "is not valid" in said and "the previous one stays in use" in said


@pytest.mark.parametrize(
    "text",
    [b"null", b"[]", b"{}", b'{"salt": 1, "hash": 2}', b'{"salt": "", "hash": ""}', b"[" * 100_000],
)
def test_a_damaged_key_file_is_corrupt_and_not_missing(tmp_path: Path, text: bytes) -> None:
    place = RouterFolder.for_deployment(tmp_path, "m")
    place.create()
    place.key_file.write_bytes(text)
    key = ReloadedFile(place.key_file, _parse_key, lambda _: None)
    assert key.read() is None and key.is_corrupt


def test_a_router_is_replaced_by_another_process_or_with_its_folder(tmp_path: Path) -> None:
    place, router = RouterFolder.for_deployment(tmp_path, "m"), ProcessIdentity(7, 19)
    assert place.is_replaced(router), "there is no folder"
    place.write_process(router)
    assert not place.is_replaced(router)
    assert place.is_replaced(ProcessIdentity(7, 20))
    (place.path / "router.json").write_text("{")
    assert not place.is_replaced(router), "a file that cannot be read says nothing"


@pytest.mark.parametrize(
    ("remote", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("", False),
        (None, False),
    ],
)
def test_requests_from_this_machine(remote: str | None, is_here: bool) -> None:
    assert _is_loopback(remote) is is_here

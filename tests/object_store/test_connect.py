"""Clients of HTTP servers and buckets: tokens, redirects, proxies, certificates, time limits."""

from __future__ import annotations

import base64
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest

from prefect_bt.errors import StoreError
from prefect_bt.object_store.connect import (
    Access,
    Limits,
    create_access,
    create_bucket_store,
    create_http_store,
    find_machine_access,
    parse_bucket_url,
)
from prefect_bt.object_store.faults import Fault, FaultKind, classify_fault
from tests.checkpoints.buckets import use
from tests.echo_host import EchoHost
from tests.weights.file_server import Files, serving_files

DATA = bytes(range(256)) * 40
ONCE = Limits(retries=0)


@pytest.fixture
def host() -> Iterator[EchoHost]:
    with closing(EchoHost()) as host:
        yield host


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """An https server with a certificate of a private authority, which SSL_CERT_FILE names."""
    with serving_files(tmp_path) as (served, authority):
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        served.files["/folder/a%20b"] = DATA
        yield served


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def get(url: str, path: str = "", span: tuple[int, int] | None = None, **given: Any) -> bytes:
    store = create_http_store(url, **{"limits": ONCE, **given})
    options: Any = {"range": span} if span else {}
    return bytes(obstore.get(store, path, options=options).bytes())


def fault(url: str, path: str = "", span: tuple[int, int] | None = None, **given: Any) -> Fault:
    with pytest.raises(Exception) as caught:
        get(url, path, span, **given)
    found = classify_fault(caught.value)
    assert "://" not in found.reason
    return found


# -- HTTP -----------------------------------------------------------------------------------------


def test_a_file_and_a_range_of_it(served: Files) -> None:
    assert get(f"{served.url}/folder", "a b") == DATA
    assert get(f"{served.url}/folder/a%20b?X-Signature=s1", span=(5, 300)) == DATA[5:300]
    assert served.asked[-1][:2] == ("/folder/a%20b?X-Signature=s1", "bytes=5-299")


def test_a_range_through_redirects(served: Files, host: EchoHost) -> None:
    served.redirects = {"/one": f"{served.url}/two", "/two": f"{served.url}/folder/a%20b"}
    assert get(served.url, "one", (5, 300)) == DATA[5:300]
    assert [wanted for _, wanted, _ in served.asked] == ["bytes=5-299"] * 3


def test_a_token_is_sent_to_the_named_host_only(host: EchoHost) -> None:
    other = EchoHost()
    host.redirects = {"/same": "/here", "/away": f"http://{other.address}/there"}
    other.redirects = {"/there": f"http://{host.address}/back"}
    given = {"token": "s3cret", "allow_http": True}
    try:
        assert get(f"http://{host.address}", "same", **given) == b"/here"
        assert [asked["authorization"] for _, asked in host.asked] == ["Bearer s3cret"] * 2
        assert get(f"http://{host.address}", "away", **given) == b"/back"
        assert not any("authorization" in asked for _, asked in (other.asked[-1], host.asked[-1]))
    finally:
        other.close()


def test_a_redirect_from_https_to_http_is_refused(served: Files, host: EchoHost) -> None:
    served.redirects["/plain"] = f"http://{host.address}/x"
    assert fault(served.url, "plain").kind is FaultKind.INSECURE
    assert fault(f"http://{host.address}", "x").kind is FaultKind.INSECURE
    assert host.asked == []


def test_an_untrusted_authority(served: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    assert fault(served.url, "folder/a b").kind is FaultKind.CERTIFICATE
    assert served.asked == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_proxy_of_the_environment(
    host: EchoHost, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """An https server is reached through a tunnel, which this proxy refuses."""
    monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://me:p%40ss@{host.address}")
    url = f"{scheme}://somewhere.invalid/folder"
    if scheme == "http":
        assert get(url, "file", allow_http=True) == f"{url}/file".encode()
    else:
        assert fault(url, "file").kind in (FaultKind.OTHER, FaultKind.UNREACHABLE)
        assert host.asked[-1][0] == "somewhere.invalid:443"
    given = base64.b64encode(b"me:p@ss").decode()
    assert host.asked[-1][1]["proxy-authorization"] == f"Basic {given}"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert get(f"http://{host.address}", "near", allow_http=True) == b"/near"
    assert "proxy-authorization" not in host.asked[-1][1]


def test_faults_of_http(served: Files) -> None:
    url, path = f"{served.url}/folder", "a b"
    served.redirects["/loop"] = f"{served.url}/loop"
    assert fault(served.url, "loop").reason == "it redirects too often"
    assert fault(url, "none").kind is FaultKind.NOT_FOUND
    served.token = "t"
    assert fault(url, path).kind is FaultKind.DENIED
    assert get(url, path, token="t") == DATA
    served.token, served.statuses = "", [429, 410]
    assert fault(url, path) == Fault(FaultKind.OTHER, "the server answered 429")
    assert fault(url, path) == Fault(FaultKind.OTHER, "the server answered 410")
    served.truncate = 1
    assert fault(url, path).reason == "the body ended early"
    served.ranges = False
    assert fault(url, path, (5, 300)).kind is FaultKind.NO_RANGES
    assert fault("https://127.0.0.1:9").reason == "the connection was refused"
    assert fault("https://somewhere.invalid").reason == "no address is known for its host"


def test_a_silent_and_a_slow_server(served: Files) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        limits = Limits(read=0.3, retries=0)
        assert fault(url, allow_http=True, limits=limits).kind is FaultKind.UNREACHABLE
    served.hang = 1
    limits = Limits(total=0.5, retries=0)
    assert fault(f"{served.url}/folder", "a b", limits=limits).kind is FaultKind.UNREACHABLE


def test_no_url_and_no_header() -> None:
    with pytest.raises(ValueError) as caught:
        create_http_store("https://host", token="planted\n")
    assert "planted" not in str(caught.value)
    with pytest.raises(ValueError):
        create_http_store("nonsense")


# -- buckets --------------------------------------------------------------------------------------


def keys() -> Access:
    found = {"access_key_id": "id", "secret_access_key": "key", "token": None}
    return create_access("the secret", lambda: {**found, "expires_at": None}, region="eu-west-1")


def read(source: str, access: Access) -> bytes:
    store = create_bucket_store(parse_bucket_url(source), access, limits=ONCE)
    return bytes(obstore.get(store, "key").bytes())


def test_aws_ca_bundle_names_authorities(
    served: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.files["/bucket/key"] = DATA
    use(monkeypatch, served.url)
    authority = tmp_path / "cert.pem"
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Exception) as caught:
        read("s3://bucket", keys())
    assert classify_fault(caught.value).kind is FaultKind.CERTIFICATE
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    assert read("s3://bucket", keys()) == DATA
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="AWS_CA_BUNDLE cannot be read"):
        read("s3://bucket", keys())


def test_an_https_bucket_is_not_read_over_http(
    served: Files, host: EchoHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, served.url)
    served.redirects["/bucket/key"] = f"http://{host.address}/x"
    with pytest.raises(Exception) as caught:
        read("s3://bucket", keys())
    assert classify_fault(caught.value).kind is FaultKind.INSECURE
    use(monkeypatch, f"http://{host.address}")
    assert read("s3://bucket", keys()) == b"/bucket/key"


def test_a_bucket_through_the_proxy(host: EchoHost, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "http://s3.invalid")
    monkeypatch.setenv("HTTP_PROXY", f"http://me:p%40ss@{host.address}")
    assert read("s3://bucket", keys()) == b"http://s3.invalid/bucket/key"
    assert "proxy-authorization" in host.asked[-1][1]


def test_a_secret_replaces_the_credentials_of_the_machine(
    host: EchoHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, f"http://{host.address}")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-machine")
    for access, used in (
        (keys(), "id/"),
        (find_machine_access(parse_bucket_url("s3://b")), "test/"),
    ):
        assert access is not None
        read("s3://bucket", access)
        asked = host.asked[-1][1]
        assert f"Credential={used}" in asked["authorization"]
        assert ("x-amz-security-token" in asked) == (used == "test/")
    assert "/us-east-1/" in host.asked[-1][1]["authorization"]
    assert "/eu-west-1/" in host.asked[-2][1]["authorization"]


def test_a_role_is_requested_again_before_it_expires(
    host: EchoHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, f"http://{host.address}")
    requested: list[int] = []
    lifetime = timedelta(minutes=4)

    def request() -> dict[str, Any]:
        requested.append(1)
        expires = datetime.now(UTC) + lifetime
        return {
            "access_key_id": f"id{len(requested)}",
            "secret_access_key": "k",
            "token": "t",
            "expires_at": expires,
        }

    access = create_access("the role", request)
    assert requested == []
    store = create_bucket_store(parse_bucket_url("s3://bucket"), access, limits=ONCE)
    assert len(requested) == 1
    assert _key_of_a_read(host, store) == "id1"
    lifetime = timedelta(hours=1)
    time.sleep(0.5)  # obstore asks for credentials at most ten times a second
    assert _key_of_a_read(host, store) == "id2", "four minutes are too few"
    time.sleep(0.5)
    assert _key_of_a_read(host, store) == "id2"


def _key_of_a_read(host: EchoHost, store: Any) -> str:
    obstore.get(store, "key")
    return re.findall("Credential=([a-z0-9]+)/", host.asked[-1][1]["authorization"])[0]


def test_a_machine_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, "http://s3.invalid")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert find_machine_access(parse_bucket_url("s3://b")) is None
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(StoreError, match=r"ProfileNotFound.*Check AWS_PROFILE"):
        find_machine_access(parse_bucket_url("s3://b"))
    google = find_machine_access(parse_bucket_url("gs://b"))
    assert google is not None and not google.has_credentials

"""`https://` against a server of our own: pins, tokens, redirects, faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import BaseError

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.connect import Limits, create_http_store
from prefect_bt.object_store.faults import classify_fault
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from prefect_bt.weights.cache.partial_file import GRANULE_BYTES
from prefect_bt.weights.download import downloader
from prefect_bt.weights.sources.http_source import WebSource
from prefect_bt.weights.sources.protocol import RangesUnsupported, TransientError
from tests.weights.conftest import mirror, requested, tree

pytest.importorskip("cryptography", reason="cryptography comes with moto[server]")
from tests.weights.file_server import Files, serving_files

DATA = os.urandom(6_000_000)
PATH = "/dir/my%20model.bin"
TOKEN = "planted-bearer-token"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.setattr(downloader, "RETRY_DELAYS", (0.01, 0.01))
    monkeypatch.setattr("prefect_bt.weights.mirror.RETRY_DELAYS", (0.01,))
    with serving_files(tmp_path) as (served, certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        served.files[PATH] = DATA
        yield served


def plan(served: Files, path: str = PATH, **given: object) -> WeightsPlan:
    return WeightsPlan(f"{served.url}{path}", "/w", "k1", **given)


def mirrored(
    plan: WeightsPlan, state: Path, secret: str | None = None, **given: Any
) -> dict[str, bytes]:
    return tree(mirror(plan, state / "state", secret=secret, **given))


def refused(plan: WeightsPlan, state: Path, secret: str | None = None, **given: Any) -> str:
    with pytest.raises(WeightsError) as caught:
        mirror(plan, state / "state", secret=secret, **given)
    assert caught.value.source == plan.source
    assert caught.value.next_step
    assert "\n" not in str(caught.value)
    assert not list((state / "state" / "weights").glob("trees/*"))
    return str(caught.value)


def bodies(served: Files) -> int:
    return sum(wanted != "bytes=0-0" for _, wanted, _ in served.asked)


def test_fetched_once_and_again_when_it_changed(served: Files, tmp_path: Path) -> None:
    assert mirrored(plan(served), tmp_path) == {"my model.bin": DATA}
    assert mirrored(plan(served), tmp_path) == {"my model.bin": DATA}
    assert bodies(served) == 1
    served.files[PATH] = b"other"
    assert mirrored(plan(served), tmp_path) == {"my model.bin": b"other"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"ETag": None, "Last-Modified": "Sat, 21 Nov 2026 05:00:00 GMT"},
        {"ETag": None},
        {"ETag": 'W/"weak"'},
    ],
)
@pytest.mark.parametrize("ranges", [True, False])
def test_the_headers_of_servers(
    served: Files, tmp_path: Path, headers: dict[str, str | None], ranges: bool
) -> None:
    served.headers, served.ranges, served.truncate = headers, ranges, 1
    assert mirrored(plan(served), tmp_path) == {"my model.bin": DATA}
    assert bodies(served) in (2, 3), "the rest of a body that was cut off, in smaller requests"


def test_an_empty_file_and_a_query(served: Files, tmp_path: Path) -> None:
    served.files["/empty"] = b""
    assert mirrored(plan(served, "/empty"), tmp_path / "1") == {"empty": b""}
    signed = plan(served, f"{PATH}?X-Signature=s1gnature")
    assert mirrored(signed, tmp_path / "2") == {"my model.bin": DATA}
    assert all("s1gnature" in path for path, _, _ in served.asked[1:])
    served.files.clear()
    assert "s1gnature" not in refused(signed, tmp_path / "3")


def test_a_body_that_was_cut_off_is_continued(served: Files, tmp_path: Path) -> None:
    served.truncate = 1
    assert mirrored(plan(served), tmp_path) == {"my model.bin": DATA}
    begins = [
        int(asked.removeprefix("bytes=").partition("-")[0])
        for _, asked, _ in served.asked
        if asked != "bytes=0-0" and asked
    ]
    assert 3_000_000 - (1 << 20) <= begins[0] <= 3_000_000


def test_the_next_run_goes_on_in_the_middle_of_a_file(served: Files, tmp_path: Path) -> None:
    served.truncate = 99
    assert "the body ended early" in refused(plan(served), tmp_path)
    had = int(served.asked[-1][1].removeprefix("bytes=").partition("-")[0])
    served.truncate = 0
    assert mirrored(plan(served), tmp_path) == {"my model.bin": DATA}
    again = int(served.asked[-1][1].removeprefix("bytes=").partition("-")[0])
    assert again >= had - had % GRANULE_BYTES > 0


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(served: Files, tmp_path: Path, status: int) -> None:
    served.statuses = [status]
    assert mirrored(plan(served), tmp_path) == {"my model.bin": DATA}
    served.statuses = [status] * 3
    told = refused(plan(served), tmp_path / "2")
    assert f"the server answered {status}" in told


@pytest.mark.slow
def test_a_connection_without_a_byte(served: Files, tmp_path: Path) -> None:
    served.hang = 1
    assert mirrored(plan(served), tmp_path, stall_timeout=5.0) == {"my model.bin": DATA}
    begin = int(served.asked[-1][1].removeprefix("bytes=").partition("-")[0])
    assert begin > 2_000_000 - (256 << 10), "what came before it is kept, to a piece"
    served.files[PATH], served.hang = DATA[:300_000], 99
    told = refused(plan(served), tmp_path / "2", stall_timeout=0.4)
    assert "no byte for 0.4 s" in told


def test_a_file_that_changes_while_it_is_read(served: Files, tmp_path: Path) -> None:
    served.truncate = 1
    whole = served.files[PATH]

    class Changing(dict[str, bytes]):
        def get(self, key: str, default: object = None) -> bytes:
            return whole if len(served.asked) < 3 else b"x" * len(whole)

    served.files = Changing()
    assert "changed while it was read" in refused(plan(served), tmp_path)


def test_the_retry_time_of_a_busy_server(served: Files) -> None:
    source = WebSource(requested(f"{served.url}{PATH}"))
    [file] = source.list_files().files
    for told, after in (("7", 7.0), ("3600", 3600.0), ("soon", 0.0), ("", 0.0)):
        served.statuses, served.retry_after = [429], told
        with pytest.raises(TransientError) as caught:
            list(source.read(file, start=0, length=-1))
        assert caught.value.retry_after == after
    served.always_busy = True
    for start, length in ((0, len(DATA)), (7, 9)):
        served.statuses, served.retry_after = [429] * 2, "7"
        with pytest.raises(TransientError, match="answered 429") as caught:
            list(source.read(file, start=start, length=length))
        assert caught.value.retry_after == 7.0
    far, past = "Sat, 21 Nov 2099 05:00:00 GMT", "Sat, 21 Nov 1998 05:00:00 GMT"
    for told, after in ((far, 7 * 24 * 3600.0), (past, 0.0)):
        served.statuses, served.retry_after = [503], told
        with pytest.raises(TransientError) as caught:
            list(source.read(file, start=0, length=-1))
        assert caught.value.retry_after == after


@pytest.mark.slow
def test_ranges_from_many_threads_over_kept_connections(served: Files) -> None:
    source = WebSource(requested(f"{served.url}{PATH}"))
    [file] = source.list_files().files
    assert not file.sequential_only
    spans = [(at, min(70_001, len(DATA) - at)) for at in range(0, len(DATA), 70_001)]

    def read(span: tuple[int, int]) -> bytes:
        return b"".join(source.read(file, start=span[0], length=span[1]))

    with ThreadPoolExecutor(8) as pool:
        assert b"".join(pool.map(read, spans)) == DATA
    assert len(served.asked) == len(spans) + 2, "and twice for the first byte"
    assert served.connections < len(spans) / 2
    served.files[PATH] = DATA[:-1] + b"x"
    with pytest.raises(WeightsError, match="changed while it was read"):
        read(spans[0])


def test_a_server_without_ranges_is_read_in_one_go(served: Files, tmp_path: Path) -> None:
    served.ranges = False
    source = WebSource(requested(f"{served.url}{PATH}"))
    [file] = source.list_files().files
    assert (file.sequential_only, file.size) == (True, len(DATA))
    with pytest.raises(RangesUnsupported):
        list(source.read(file, start=7, length=9))
    served.asked.clear()
    served.files[PATH] = DATA * 4
    assert mirrored(plan(served), tmp_path) == {"my model.bin": DATA * 4}
    assert bodies(served) == 1


def test_a_connection_that_the_server_closed_meanwhile(served: Files) -> None:
    source = WebSource(requested(f"{served.url}{PATH}"))
    [file] = source.list_files().files
    assert b"".join(source.read(file, start=0, length=10)) == DATA[:10]
    served.drop = True
    while not served.dropped:  # a request may take a new connection
        with suppress(TransientError):
            list(source.read(file, start=0, length=10))
    assert b"".join(source.read(file, start=5, length=10)) == DATA[5:15]
    assert served.dropped == 1


def test_a_token_goes_to_the_named_host_alone(
    served: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.token = TOKEN
    asked = plan(served, secret="bearer", auth=WeightsAuthPlan("CUSTOM_SECRET"))
    told = refused(plan(served), tmp_path)
    assert "answered 401" in told and "Give auth" in told
    assert "Check that its token" in refused(asked, tmp_path, "wr0ng")
    assert mirrored(asked, tmp_path, TOKEN) == {"my model.bin": DATA}
    with serving_files(_folder(tmp_path / "other")) as (other, certificate):
        both = tmp_path / "both.pem"
        both.write_bytes((tmp_path / "cert.pem").read_bytes() + certificate.read_bytes())
        monkeypatch.setenv("SSL_CERT_FILE", str(both))
        other.files["/elsewhere"] = DATA
        served.redirects["/go"] = f"{other.url}/elsewhere"
        served.token = ""
        moved = plan(served, "/go", secret="bearer", auth=WeightsAuthPlan("CUSTOM_SECRET"))
        assert mirrored(moved, tmp_path / "2", TOKEN) == {"go": DATA}
        assert {given for _, _, given in other.asked} == {""}
        served.redirects["/in"] = f"{other.url.replace('//', '//user:password@')}/elsewhere"
        moved = plan(served, "/in", secret="bearer", auth=WeightsAuthPlan("CUSTOM_SECRET"))
        assert mirrored(moved, tmp_path / "3", TOKEN) == {"in": DATA}
        assert not any(TOKEN in given for _, _, given in other.asked)


def test_no_query_is_logged(
    served: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    served.redirects["/go"] = f"{served.url}{PATH}?signature=s1gned"
    assert mirrored(plan(served, "/go?key=s1gned"), tmp_path) == {"go": DATA}
    assert f"{served.url}/go " in caplog.text
    assert "s1gned" not in caplog.text


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_sentences(served: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the server answered 404" in refused(plan(served, "/none"), tmp_path)
    assert "names no file" in refused(plan(served, "/dir/"), tmp_path)
    served.redirects["/plain"] = "http://127.0.0.1:9/x"
    assert "it leads to an address without https" in refused(plan(served, "/plain"), tmp_path)
    served.redirects["/loop"] = f"{served.url}/loop"
    assert "could not be read" in refused(plan(served, "/loop"), tmp_path)
    served.headers = {"ETag": None, "Content-Length": None, "Content-Range": None}
    served.ranges = False
    assert "neither ETag nor Last-Modified nor a length" in refused(plan(served), tmp_path)
    nobody = WeightsPlan("https://127.0.0.1:9/x", "/w", "k1")
    assert "the connection was refused" in refused(nobody, tmp_path)
    bad = plan(served, secret="bearer", auth=WeightsAuthPlan("CUSTOM_SECRET"))
    told = refused(bad, tmp_path, "two\nl1nes")
    assert "The secret 'bearer'" in told and "l1nes" not in told
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "its certificate is not trusted" in refused(plan(served), tmp_path)


@pytest.mark.parametrize(
    ("valid_from", "words"),
    [(1, "is not valid yet by this machine's clock"), (-3, "has expired by this machine's clock")],
)
def test_a_certificate_of_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valid_from: int, words: str
) -> None:
    with serving_files(tmp_path, valid_from=valid_from) as (served, certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        served.files[PATH] = DATA
        error = refused(plan(served), tmp_path)
        assert f"its certificate {words}" in error
        assert ("Set the clock" in error) == (valid_from > 0)
        store = create_http_store(served.url, limits=Limits(retries=0))
        with pytest.raises(BaseError) as caught:
            obstore.get(store, "model.bin")
    assert words in classify_fault(caught.value).reason

"""One download by several hosts: each reads its part of the source, and the rest from the store."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.object_store import open_store
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.object_store.protocols import Store
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.store_copy import copies, shared_download
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, sharing_prefix
from prefect_bt.weights.store_copy.shared_download import SharedDownload
from tests.checkpoints.buckets import Bucket, use
from tests.object_store.faulty import FaultyServer, LoseAnswer
from tests.s3_server import shared_s3

NAMES = [f"part-{number}" for number in range(6)]
LISTED = [ListedFile(name, len(name)) for name in NAMES]


@pytest.fixture(autouse=True)
def one_file_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_download, "BATCH_BYTES", 1)


class Host:
    """Downloads a tree of small files, whose content is their name."""

    def __init__(self, folder: Path, store: Store) -> None:
        folder.mkdir()
        self.folder, self.store = folder, store
        self.downloaded: list[str] = []
        self.notes: list[str] = []
        self.stop = threading.Event()

    def open(self) -> SharedDownload:
        return SharedDownload(
            StoreMirror(self.store),
            "k1-r1",
            LISTED,
            file_path=lambda path: self.folder / path,
            stop=self.stop,
            on_note=self.notes.append,
        )

    def run(self, before_each: Callable[[], None] = lambda: None) -> None:
        with self.open() as share:
            for batch in share.iter_batches(LISTED):
                for file in batch:
                    before_each()
                    self.read(share, file)

    def read(self, share: SharedDownload, file: ListedFile) -> None:
        if file.sha256 in share.stored:
            pieces = StoreMirror(self.store).read(file.sha256, start=0, length=file.size or 0)
            (self.folder / file.path).write_bytes(b"".join(pieces))
            return
        (self.folder / file.path).write_text(file.path)
        self.downloaded.append(file.path)
        share.add_finished(file.path, hashlib.sha256(file.path.encode()).hexdigest())

    def content(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.iterdir()}


@pytest.fixture
def hosts(tmp_path: Path, store: Store) -> tuple[Host, Host]:
    return Host(tmp_path / "a", store), Host(tmp_path / "b", store)


def test_every_file_is_downloaded_by_one_host(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    together = threading.Barrier(2)

    def run(host: Host) -> None:
        begun = threading.Event()

        def wait_for_the_other() -> None:
            if not begun.is_set():
                begun.set()
                together.wait()

        host.run(wait_for_the_other)

    threads = [threading.Thread(target=run, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.downloaded + other.downloaded) == NAMES
    assert one.content() == other.content() == {name: name for name in NAMES}


def test_a_host_that_comes_later_reads_the_store(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.run()
    other.run()
    assert (sorted(one.downloaded), other.downloaded) == (NAMES, [])
    assert other.content() == one.content()


def test_the_part_of_a_dead_host_is_downloaded_again(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_download, "EXPIRE_SECONDS", 0.2)
    one, other = hosts
    one.store.create(f"{sharing_prefix('k1-r1')}/0", b"")
    other.run()
    assert sorted(other.downloaded) == NAMES
    assert other.notes == ["another host downloads the remaining files"] * len(other.notes)


@pytest.mark.parametrize(
    "store",
    ["disk", pytest.param("s3", marks=[pytest.mark.integration, pytest.mark.extended])],
    indirect=True,
)
def test_the_part_of_a_living_host_is_waited_for(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_download, "EXPIRE_SECONDS", 3.0)
    monkeypatch.setattr(shared_download, "RENEW_SECONDS", 0.1)
    one, other = hosts
    with one.open() as share:
        (file,) = next(share.iter_batches(LISTED))
        waiting = threading.Thread(target=other.run, daemon=True)
        waiting.start()
        time.sleep(4.0)
        assert waiting.is_alive()
        one.read(share, file)
        waiting.join()
    assert sorted(other.downloaded) == sorted(set(NAMES) - {file.path})
    assert other.content() == {name: name for name in NAMES}


def test_a_part_whose_lost_answer_was_repeated_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host would otherwise wait until its own part has expired."""
    with FaultyServer(shared_s3()) as server:
        use(monkeypatch, server.url)
        bucket = Bucket(server.upstream)
        host = Host(tmp_path / "a", open_store(bucket.url))
        lost = server.on(LoseAnswer(), method="PUT", path="/weights/sharing/k1-r1/0$")
        host.run()
        bucket.empty()
    assert lost.hits == 1
    assert (sorted(host.downloaded), host.notes) == (NAMES, [])


def test_a_host_that_fails_gives_its_part_back(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    with pytest.raises(OSError, match="full"), one.open() as share:
        next(share.iter_batches(LISTED))
        raise OSError("disk is full")
    other.run()
    assert (sorted(other.downloaded), other.notes) == (NAMES, [])


def test_garbage_in_the_store_counts_as_nothing(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_download, "EXPIRE_SECONDS", 0.2)
    one, other = hosts
    for number, garbage in enumerate((b"{", b"[]", b'{"part-2": 3}', b"\xff")):
        one.store.put(f"{sharing_prefix('k1-r1')}/{number}", garbage)
    other.run()
    assert sorted(other.downloaded) == NAMES


def test_a_store_that_fails_ends_the_sharing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.write_text("a file where the store should be")
    host = Host(tmp_path / "a", DiskStore(folder))
    host.run()
    assert sorted(host.downloaded) == NAMES
    assert "not shared" in host.notes[0]


def test_stop_ends_the_wait_for_another_host(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    for number in range(len(NAMES)):
        one.store.create(f"{sharing_prefix('k1-r1')}/{number}", b"")
    waiting = threading.Thread(target=other.run, daemon=True)
    waiting.start()
    other.stop.set()
    waiting.join()
    assert other.downloaded == []


class FullStore(DiskStore):
    """A store with a quota that no blob fits into."""

    def link_file(self, key: str, source: Path) -> bool:
        return False

    def upload_verified(self, key: str, source: Path, **_: object) -> str:
        raise StoreError("The quota is exceeded.", url=self.url, key=key)


def test_hosts_whose_uploads_fail_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_RETRY_DELAYS", ())
    one, other = (Host(tmp_path / name, FullStore(tmp_path / "store")) for name in "ab")
    together = threading.Barrier(2)
    threads = [
        threading.Thread(target=host.run, args=(once(together.wait),), daemon=True)
        for host in (one, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(one.downloaded) == sorted(other.downloaded) == NAMES


def once(call: Callable[[], object]) -> Callable[[], None]:
    waiting = iter([call])

    def run() -> None:
        for one in waiting:
            one()

    return run


class SilentStore(DiskStore):
    """A store that stops to answer deletions."""

    silent = threading.Event()

    def delete(self, key: str) -> None:
        self.silent.wait(30.0)


def test_a_silent_store_does_not_delay_an_error(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", store := SilentStore(tmp_path / "store"))
    began = time.monotonic()
    with pytest.raises(OSError, match="full"), host.open() as share:
        next(share.iter_batches(LISTED))
        raise OSError("disk is full")
    took = time.monotonic() - began
    store.silent.set()
    assert took < 15.0


def test_an_error_ends_the_wait_of_other_threads(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    for number in range(len(NAMES)):
        one.store.create(f"{sharing_prefix('k1-r1')}/{number}", b"")
    found: list[object] = []
    with pytest.raises(OSError, match="full"), other.open() as share:
        waiting = threading.Thread(
            target=lambda: found.extend(share.iter_batches(LISTED)), daemon=True
        )
        waiting.start()
        raise OSError("disk is full")
    waiting.join(10.0)
    assert not waiting.is_alive()
    assert found == []


def test_files_are_synced_before_a_store_on_their_disk_links_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sync = DiskStore(tmp_path / "store"), os.sync
    linked: list[int] = []

    def record(folder: Path) -> None:
        linked.append(sum(1 for _ in store.list("weights/blobs")))
        assert folder == host.folder
        sync()

    monkeypatch.setattr(shared_download, "sync_file_system", record)
    host = Host(tmp_path / "a", store)
    host.run()
    assert linked == list(range(len(NAMES)))
    name = hashlib.sha256(NAMES[0].encode()).hexdigest()
    assert store.find_local_path(blob_key(name))

"""An uploader in a thread, and a store that counts and can be broken."""

import threading
import time

from prefect_bt.checkpoints.committed import catalog
from prefect_bt.checkpoints.upload.uploader import Uploader
from prefect_bt.errors import StoreError
from prefect_bt.ledger.records import UploadStatus
from prefect_bt.object_store.disk import DiskStore

from . import folders
from .folders import FAST, JOB, PROJECT


def listed(store):
    return {one.checkpoint_id: one for one in catalog.list_checkpoints(store, PROJECT, JOB)}


def wait_for(check, seconds=120.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")


class Running:
    """An uploader's loop in a thread."""

    def __init__(self, store, directory, options=FAST, **where):
        self.directory, self.reports, self.ending = directory, [], threading.Event()
        self.status = UploadStatus(updated_at=0)
        self._uploader = Uploader(
            store,
            directory=directory,
            origin=folders.origin(**where),
            options=options,
            report=self.reports.append,
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        self.status = self._uploader.run(self.ending)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def commits(self, name, files):
        """Write these files of a checkpoint, and wait for its commit."""
        folders.write(self.directory / name, files)
        wait_for(lambda: self.done(name))

    def done(self, name):
        return any(name in report.committed for report in self.reports)


class Counting(DiskStore):
    """Counts what is sent, by digest; fails while `broken`."""

    def __init__(self, root):
        super().__init__(root)
        self.sent: list[str] = []
        self.broken: StoreError | None = None

    def _takes(self, key):
        if self.broken:
            raise self.broken
        self.sent.append(key.rpartition("/")[2])

    def put(self, key, data):
        if "/objects/" in key:
            self._takes(key)
        super().put(key, data)

    def upload_verified(self, key, source, *, sha256="", on_bytes=None):
        self._takes(key)
        return super().upload_verified(key, source, sha256=sha256, on_bytes=on_bytes)

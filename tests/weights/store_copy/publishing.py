"""Blobs to publish, a process that publishes them, and what the store has of them."""

import hashlib

from prefect_bt.weights.manifest import FileEntry, WeightsManifest, dump_manifest
from tests.forked import Forked

PUBLISHER = """
import itertools, sys, time
from pathlib import Path
from prefect_bt.object_store import open_store
from prefect_bt.weights.manifest import load_manifest
from prefect_bt.weights.store_copy.copies import StoreMirror
from prefect_bt.weights.store_copy import copies
from tests.object_store.small import PART, use_small_parts
use_small_parts()
copies.LARGE_BLOB_BYTES = copies.CHUNK_BYTES = PART
url, blobs, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
manifest = load_manifest((blobs / "manifest").read_bytes())
mirror, numbers = StoreMirror(open_store(url)), itertools.count(1)
def tick(size):
    if next(numbers) == last:
        print("there", flush=True)
        time.sleep(3600)
mirror.publish(manifest, lambda sha256: blobs / sha256, on_bytes=tick)
"""


class Blobs:
    """Files of this machine, by digest."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir()

    def __call__(self, sha256):
        return self.folder / sha256

    def manifest(self, files, revision="r1"):
        """Of path -> bytes."""
        entries = []
        for path, data in sorted(files.items()):
            digest = hashlib.sha256(data).hexdigest()
            self(digest).write_bytes(data)
            self(digest).chmod(0o444)
            entries.append(FileEntry(path, len(data), digest))
        return WeightsManifest("hf://o/r", "k1", revision, tuple(entries), 12.5)

    def publisher(self, url, manifest, *, until=0):
        """A process; it says so and waits when it has heard of bytes `until` times."""
        (self.folder / "manifest").write_bytes(dump_manifest(manifest))
        return Forked(PUBLISHER, [url, self.folder, until])


def read_all(mirror, manifest):
    """path -> what the store has of it."""
    return {
        entry.path: b"".join(mirror.read(entry.sha256, start=0, length=entry.size))
        for entry in manifest.entries
    }


def stored(store):
    return {info.key.rpartition("/")[2] for info in store.list("weights/blobs")}


def digest(data):
    return hashlib.sha256(data).hexdigest()

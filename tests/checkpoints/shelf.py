"""Jobs with committed checkpoints, and stores that are slow or stop at a word."""

import random
import time

from prefect_bt.checkpoints.committed.verify_committed import verify
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import objects_prefix, tombstones_prefix
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.planning.plan import LoadedCheckpoint
from tests.jobs.records import new_record
from tests.written_jobs import write_job

from . import folders
from .folders import JOB, PROJECT, flush
from .running import listed


def commit(store, directory, steps, *, rank=0, attempt=1, seed=b"w", group_size=1):
    """`checkpoint-<step>` for every step, as an uploader commits them; each has its own bytes."""
    for step in steps:
        content = folders.hf_full(step, seed=seed + b"%d.%d" % (rank, step))
        folders.write(directory / f"checkpoint-{step}", content)
    status = flush(store, directory, rank=rank, attempt=attempt, group_size=group_size)
    assert status.error == ""
    assert status.uncommitted == ()


def commit_ranks(store, root, steps):
    """The same steps of two ranks."""
    for rank in (0, 1):
        commit(store, root / f"rank-{rank}", steps, rank=rank, group_size=2)


def names(*steps):
    return tuple(f"checkpoint-{step}" for step in steps)


def loaded(store, *wanted):
    """What a restore of these would ask for."""
    found = listed(store)
    return [
        LoadedCheckpoint(PROJECT, JOB, name, tuple(found[name].manifest_keys.values()))
        for name in wanted
    ]


def check_whole(store):
    """Every checkpoint that is listed has every byte."""
    assert verify(store, PROJECT, JOB) == []
    for checkpoint in listed(store).values():
        assert {part.rank for part in checkpoint.manifests}
        for file in checkpoint.files():
            assert len(store.get(file.key)) == file.size


def rest(store):
    """Keys of objects that no checkpoint names, and of withdrawals that are not done."""
    named = {file.key for one in listed(store).values() for file in one.files()}
    folder = objects_prefix(PROJECT, JOB, 1).rpartition("/")[0]
    objects = {info.key for info in store.list(folder)}
    return (objects - named) | {i.key for i in store.list(tombstones_prefix(PROJECT, JOB))}


def make_job(ledger: Ledger, *states: JobState) -> str:
    """A job in the ledger, for instance one that holds another's checkpoints; its id."""
    record = new_record(ledger, "holders")
    write_job(ledger, record)
    for state in states:
        ledger.append_event(record.id, state)
    return record.id


class Slow(DiskStore):
    """A disk whose every verb takes a while, by chance; the same chances for the same seed."""

    def __init__(self, root, *, seed=0, most=0.003):
        super().__init__(root)
        self._chance, self._most = random.Random(seed), most

    def _wait(self):
        time.sleep(self._chance.uniform(0, self._most))

    def delete(self, key):
        self._wait()
        super().delete(key)
        self._wait()

    def create(self, key, data):
        self._wait()
        super().create(key, data)
        self._wait()

    def put(self, key, data):
        self._wait()
        super().put(key, data)

    def list(self, prefix):
        self._wait()
        yield from super().list(prefix)


class Killed(BaseException):
    """As if the process had been killed."""


def kill():
    raise Killed


class Interrupted(DiskStore):
    """Runs `then` once, right after the first write or delete of a key that has `word` in it."""

    def __init__(self, root, word, then):
        super().__init__(root)
        self._word, self._then = word, then

    def create(self, key, data):
        super().create(key, data)
        self._after(key)

    def put(self, key, data):
        super().put(key, data)
        self._after(key)

    def delete(self, key):
        super().delete(key)
        self._after(key)

    def _after(self, key):
        if self._word in key and self._then is not None:
            then, self._then = self._then, None
            then()

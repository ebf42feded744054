"""Uploads that no job took."""

import os
import time
from pathlib import Path

import pytest

from prefect_bt.gc.findings import OrphanKind, remove_all
from prefect_bt.http_api.uploads.staging import OBJECT_NAME, STALE_SECONDS, Uploads
from tests.gc.conftest import Site


def begin_upload(site: Site, age: float) -> Path:
    uploads = Uploads(site.state)
    folder = uploads.open(uploads.issue("abc1234")[0])
    for name in ("1-0", OBJECT_NAME):
        (folder / name).write_bytes(b"x" * 10_000)
    for path in (*folder.iterdir(), folder):
        set_age(path, age)
    return folder


def set_age(path: Path, age: float) -> None:
    os.utime(path, (0, time.time() - age))


@pytest.mark.parametrize("by_start", [True, False])
def test_upload_unchanged_for_a_day_is_removed(site: Site, by_start: bool) -> None:
    begin_upload(site, STALE_SECONDS - 60)
    assert site.kinds() == []
    stale = begin_upload(site, STALE_SECONDS + 60)
    assert site.kinds() == [OrphanKind.API_UPLOAD]
    if by_start:
        Uploads(site.state).remove_stale()
    else:
        assert site.clear() == []
    assert site.kinds() == []
    assert not stale.exists()


def test_upload_continued_since_it_was_listed_stays(site: Site) -> None:
    stale = begin_upload(site, STALE_SECONDS + 60)
    found = site.look()
    set_age(stale / OBJECT_NAME, 0)
    assert [one.error for one in remove_all(found)] == [""]
    assert stale.exists()

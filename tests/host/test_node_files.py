"""Small files of nodes, which several threads of a process replace."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.host.nodes import files
from prefect_bt.host.nodes.files import write_text_atomic
from tests.altered import altered


def test_threads_that_replace_the_same_file_at_once_leave_it_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, both_opened = tmp_path / "status.json", threading.Barrier(2, timeout=60)

    def open_descriptor(descriptor: int, *arguments: Any, **options: Any) -> Any:
        both_opened.wait()
        return os.fdopen(descriptor, *arguments, **options)

    monkeypatch.setattr(files, "os", altered(os, fdopen=open_descriptor))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda text: write_text_atomic(path, text), ("first", "other")))
    assert path.read_text() in {"first", "other"}
    assert list(tmp_path.iterdir()) == [path]

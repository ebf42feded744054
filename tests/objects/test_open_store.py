import subprocess
import sys

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.objects import open_store


@pytest.mark.parametrize("spelling", ["{}", "file://{}"])
def test_a_folder_reopens_by_its_url(tmp_path, spelling):
    folder = tmp_path / "with space"
    store = open_store(spelling.format(folder))
    store.put("a", b"1")
    assert open_store(store.url).get("a") == b"1"


def test_a_relative_folder_and_a_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("here").put("a", b"1")
    assert open_store("~/here").get("a") == b"1"


def test_unknown_scheme_names_the_known_ones():
    with pytest.raises(StoreError, match=r"ftp://.*file://.*memory://.*s3://"):
        open_store("ftp://host/x")


@pytest.mark.parametrize("url", ["file://otherhost/x", "file://relative", "s3://"])
def test_bad_addresses(url):
    with pytest.raises(StoreError):
        open_store(url)


def test_the_import_is_cheap():
    code = (
        "import sys, time; t = time.perf_counter(); import prefect_bt.objects as o;"
        "o.open_store('/tmp/x-never-written'); print(time.perf_counter() - t);"
        "print([m for m in ('obstore', 'boto3', 'prefect', 'pydantic') if m in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    assert all(run.stdout.split("\n")[1] == "[]" for run in runs)
    # The best of three, with room for a busy machine; measured: 25 ms.
    assert min(float(run.stdout.split()[0]) for run in runs) < 0.15

import pytest

from prefect_bt.object_store.disk import DiskStore


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path / "store")


@pytest.fixture
def ckpts(tmp_path):
    folder = tmp_path / "ckpts"
    folder.mkdir()
    return folder

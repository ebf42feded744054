import pytest

from prefect_bt.object_store.disk import DiskStore
from tests.checkpoints.running import Counting


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path / "store")


@pytest.fixture
def counting(tmp_path):
    return Counting(tmp_path / "store")


@pytest.fixture
def ckpts(tmp_path):
    folder = tmp_path / "ckpts"
    folder.mkdir()
    return folder

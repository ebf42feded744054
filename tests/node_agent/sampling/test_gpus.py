"""GPUs through the real binding of NVML, whose library answers as recorded."""

import math
from pathlib import Path

import pytest

from prefect_bt.job_metrics.node_metrics import (
    GpuFacts,
    MetricsWriter,
    NodeFacts,
    decode_metrics,
)
from prefect_bt.node_agent.sampling import gpus
from prefect_bt.node_agent.sampling.gpus import open_gpu_files, open_gpus
from tests.node_agent.sampling.nvml import TOTAL, UUIDS, Driver, driver

__all__ = ["driver"]


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (["0", "1"], [0, 1]),
        (["1"], [1]),
        ([UUIDS[1].decode()], [1]),
    ],
)
def test_reserved_gpus_are_sampled(devices: list[str], indices: list[int], driver: Driver) -> None:
    reader = open_gpus(devices)
    assert reader is not None
    assert reader.facts == tuple(GpuFacts(index, "NVIDIA H200", TOTAL) for index in indices)
    sample = reader.sample()
    for index in indices:
        assert sample[f"gpu{index}_utilization"] == 0.97
        assert sample[f"gpu{index}_memory"] == 70_000_000_000
        assert sample[f"gpu{index}_temperature"] == 61
        assert sample[f"gpu{index}_ecc_errors"] == 3 * index
        assert sample[f"gpu{index}_power"] == (612.345 if index == 0 else None)


def test_a_pod_has_the_gpus_whose_files_its_container_has(driver: Driver) -> None:
    reader = open_gpu_files({5})
    assert reader is not None
    assert [gpu.index for gpu in reader.facts] == [1]


def test_a_lost_gpu_has_no_values_and_its_error_is_an_event(driver: Driver) -> None:
    reader = open_gpus(["0", "1"])
    assert reader is not None
    driver.lost, driver.xids = {0}, [(0, 79), (1, 31)]
    sample = reader.sample()
    assert {name for name, value in sample.items() if value is None} == {
        *(f"gpu0_{name}" for name in ("utilization", "memory", "temperature", "power")),
        "gpu0_ecc_errors",
        "gpu1_power",
    }
    assert reader.read_xids() == ["GPU 0 reported Xid error 79", "GPU 1 reported Xid error 31"]
    assert reader.read_xids() == []


def test_what_is_not_supported_is_absent_in_the_file(tmp_path: Path, driver: Driver) -> None:
    reader = open_gpus(["1"])
    assert reader is not None
    writer = MetricsWriter(tmp_path / "metrics", NodeFacts(gpus=reader.facts))
    writer.write_sample(1e9, reader.sample())
    writer.close()
    node = decode_metrics((tmp_path / "metrics").read_bytes(), attempt=0, rank=0)
    assert math.isnan(node.columns["gpu1_power"][0])
    assert node.last("gpu1_power") is None
    assert node.last("gpu1_utilization") == 0.97


@pytest.mark.parametrize("has_driver", [True, False])
def test_without_gpus_or_driver_nothing_is_loaded(
    has_driver: bool, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_driver:
        monkeypatch.setattr(gpus, "_DEVICES", (Path("/dev/no-such-device"),))
    assert open_gpus([] if has_driver else ["0"]) is None
    assert open_gpu_files(set() if has_driver else {4}) is None


def test_a_driver_that_refuses_gives_no_reader(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_open", lambda _index, _out: 3)
    assert open_gpus(["0"]) is None

"""A driver library with recorded answers, behind the real binding of NVML (nvidia-ml-py).

The answers are those of a machine with two H200, of which the second does not support power.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from prefect_bt.node_agent.sampling import gpus

TOTAL = 150_754_820_096
UUIDS = (b"GPU-8f1c3a52-0d6e-4b8e-9d1e-1f0a6a1d7c10", b"GPU-2b9e7d44-75c1-4a0f-8a55-6f1f7f0f2c11")


@dataclass
class Driver:
    """Answers of the driver. A lost device answers with an error, as after a fall off the bus."""

    lost: set[int] = field(default_factory=set[int])
    xids: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Device and number of the errors that are not read yet."""

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlInitWithFlags": lambda _flags: 0,
            "nvmlDeviceGetCount_v2": lambda out: self._set(out, 2),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, out: self._open(index.value, out),
            "nvmlDeviceGetHandleByUUID": lambda uuid, out: self._open(UUIDS.index(uuid.value), out),
            "nvmlDeviceGetIndex": lambda device, out: self._set(out, _index(device)),
            "nvmlDeviceGetMinorNumber": lambda device, out: self._set(out, 4 + _index(device)),
            "nvmlDeviceGetName": lambda _device, out, _size: self._set(out, b"NVIDIA H200"),
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetUtilizationRates": self._rates,
            "nvmlDeviceGetPowerUsage": self._power,
            "nvmlDeviceGetTemperature": lambda device, _sensor, out: self._answer(device, out, 61),
            "nvmlDeviceGetTotalEccErrors": lambda device, _kind, _counter, out: self._answer(
                device, out, 3 * _index(device)
            ),
            "nvmlEventSetCreate": lambda _out: 0,
            "nvmlDeviceRegisterEvents": lambda _device, _kinds, _events: 0,
            "nvmlEventSetWait_v2": self._wait,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _open(self, index: int, out: Any) -> int:
        ctypes.c_void_p.from_buffer(out._obj).value = index + 1
        return 0

    def _set(self, out: Any, value: Any) -> int:
        getattr(out, "_obj", out).value = value
        return 0

    def _answer(self, device: Any, out: Any, value: int) -> int:
        return pynvml.NVML_ERROR_GPU_IS_LOST if self._is_lost(device) else self._set(out, value)

    def _is_lost(self, device: Any) -> bool:
        return _index(device) in self.lost

    def _memory(self, device: Any, out: Any) -> int:
        out._obj.total, out._obj.used = TOTAL, 70_000_000_000
        return pynvml.NVML_ERROR_GPU_IS_LOST if self._is_lost(device) else 0

    def _rates(self, device: Any, out: Any) -> int:
        out._obj.gpu, out._obj.memory = 97, 41
        return pynvml.NVML_ERROR_GPU_IS_LOST if self._is_lost(device) else 0

    def _power(self, device: Any, out: Any) -> int:
        if _index(device) == 1:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        return self._answer(device, out, 612_345)

    def _wait(self, _events: Any, out: Any, _timeout: Any) -> int:
        if not self.xids:
            return pynvml.NVML_ERROR_TIMEOUT
        index, number = self.xids.pop(0)
        ctypes.c_void_p.from_buffer(out._obj, type(out._obj).device.offset).value = index + 1
        out._obj.eventData = number
        return 0


def _index(device: Any) -> int:
    return (ctypes.cast(device, ctypes.c_void_p).value or 0) - 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Driver:
    """Install the library, and the device file of a driver."""
    made = Driver()
    monkeypatch.setattr(pynvml, "nvmlLib", made)
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(gpus, "_DEVICES", (request.path,))
    return made

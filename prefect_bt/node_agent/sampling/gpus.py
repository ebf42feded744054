"""Sample the GPUs of a node through NVML, the library of NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from prefect_bt.job_metrics.node_metrics import GpuFacts

_DEVICES: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Device files of the driver, on Linux and on WSL. Without them NVML is not loaded."""
XID: Final = "xid"


def open_gpus(devices: Sequence[str]) -> GpuReader | None:
    """Return a reader of GPUs; None without a driver, or if it does not answer.

    `devices`: indices or UUIDs, as in CUDA_VISIBLE_DEVICES.
    """
    nvml = _load_nvml()
    if nvml is None or not devices:
        return None
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(int(device))
            if device.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(device)
            for device in devices
        ]
        return GpuReader(nvml, handles)
    return None


def open_gpu_files(numbers: Collection[int]) -> GpuReader | None:
    """Return a reader of the GPUs with these numbers of device files, /dev/nvidia<n>."""
    nvml = _load_nvml()
    if nvml is None or not numbers:
        return None
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return GpuReader(nvml, [h for h in handles if nvml.nvmlDeviceGetMinorNumber(h) in numbers])
    return None


def _load_nvml() -> Any:
    """Return the module of NVML; None without a driver."""
    if not any(device.exists() for device in _DEVICES):
        return None
    return import_module("pynvml")  # 15 ms, of which a node without GPUs has no use


class GpuReader:
    """Reads the open GPUs. A value that a GPU does not support is None, as on a MIG device."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = {
            self._ask(nvml.nvmlDeviceGetIndex, handle, default=position): handle
            for position, handle in enumerate(handles)
        }
        self.facts = tuple(map(self._describe, self._handles))
        self._events = self._ask(nvml.nvmlEventSetCreate)
        for handle in self._handles.values() if self._events is not None else ():
            kinds = nvml.nvmlEventTypeXidCriticalError
            self._ask(nvml.nvmlDeviceRegisterEvents, handle, kinds, self._events)

    def sample(self) -> dict[str, float | None]:
        """Return the values of node_metrics.GPU_COLUMNS of all GPUs by column."""
        columns = dict[str, float | None]()
        for index, handle in self._handles.items():
            values = self._sample_device(handle)
            columns |= {f"gpu{index}_{name}": value for name, value in values.items()}
        return columns

    def read_xids(self) -> list[str]:
        """Return a sentence for each Xid error since the last call."""
        sentences = list[str]()
        while self._events is not None and len(sentences) < 100:
            event = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # a timeout: there is none
                break
            index = self._ask(self._nvml.nvmlDeviceGetIndex, event.device)
            sentences.append(f"GPU {index} reported Xid error {event.eventData}")
        return sentences

    def _sample_device(self, handle: Any) -> dict[str, float | None]:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return {
            "utilization": None if rates is None else rates.gpu / 100,
            "memory": None if memory is None else memory.used,
            "temperature": self._ask(
                nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "power": None if milliwatts is None else milliwatts / 1000,
            "ecc_errors": self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter),
        }

    def _describe(self, index: int) -> GpuFacts:
        handle = self._handles[index]
        name = self._ask(self._nvml.nvmlDeviceGetName, handle, default="GPU")
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        return GpuFacts(index, name, 0 if memory is None else memory.total)

    def _ask(self, function: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
        """Return the function's result; `default` if NVML has no answer, as for a lost GPU."""
        with suppress(self._nvml.NVMLError):
            return function(*arguments)
        return default

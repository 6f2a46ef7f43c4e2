"""A ``pynvml`` without a GPU: functions, signatures and return types of nvidia-ml-py, and a machine to tell.

``tests/data/environment/pynvml_signatures.json`` holds the real module's signatures; a test compares them.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_FOUND = 6
_WORDS = {2: "Invalid Argument", 3: "Not Supported", 6: "Not Found", 12: "NVML Shared Library Not Found"}


class NVMLError(Exception):
    """As the real one: made from a number, and its text says what it means."""

    def __new__(cls, value: int) -> NVMLError:
        made = Exception.__new__(cls)
        made.value = value
        return made

    value: int

    def __str__(self) -> str:
        return _WORDS[self.value]


class c_nvmlMemory_t(ctypes.Structure):  # noqa: N801
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = "GPU-11111111-aaaa-bbbb-cccc-000000000000"
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 85_520_809_984
    links: int = 18
    mig: bool = False
    slices: tuple[Gpu, ...] = ()


class FakeNvml:
    """One machine. Answers like the module; functions named in ``absent`` are not there at all."""

    NVMLError = NVMLError
    NVML_FEATURE_ENABLED = 1
    NVML_CLOCK_GRAPHICS = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_TOPOLOGY_INTERNAL = 0
    NVML_TOPOLOGY_SINGLE = 10
    NVML_TOPOLOGY_MULTIPLE = 20
    NVML_TOPOLOGY_HOSTBRIDGE = 30
    NVML_TOPOLOGY_NODE = 40
    NVML_TOPOLOGY_SYSTEM = 50
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(
        self,
        *gpus: Gpu,
        free_bytes: int = 1,
        temperature_c: int = 40,
        library: bool = True,
        absent: frozenset[str] = frozenset(),
        as_bytes: bool = False,
    ) -> None:
        self._gpus = gpus
        self._free_bytes = free_bytes
        self._temperature_c = temperature_c
        self._library = library
        self._absent = absent
        self._as_bytes = as_bytes
        self.open = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "_absent"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:  # noqa: N802
        if not self._library:
            raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return self._told("550.54.15")

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 12040

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        return self._gpus[index]

    def nvmlDeviceGetName(self, handle: Gpu) -> Any:  # noqa: N802
        return self._told(handle.name)

    def nvmlDeviceGetUUID(self, handle: Gpu) -> Any:  # noqa: N802
        return self._told(handle.uuid)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> tuple[int, int]:  # noqa: N802
        return handle.capability

    def nvmlDeviceGetNumGpuCores(self, device: Gpu) -> int:  # noqa: N802
        return 16896

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu, version: Any = None) -> c_nvmlMemory_t:  # noqa: N802
        used = handle.memory_bytes - self._free_bytes
        return c_nvmlMemory_t(handle.memory_bytes, self._free_bytes, used)

    def nvmlDeviceGetMigMode(self, device: Gpu) -> list[int]:  # noqa: N802
        if device.uuid.startswith("MIG-"):
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        return [int(device.mig), 1 - int(device.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Gpu) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Gpu, index: int) -> Gpu:  # noqa: N802
        if index >= len(device.slices):
            raise NVMLError(NVML_ERROR_NOT_FOUND)
        return device.slices[index]

    def nvmlDeviceGetEccMode(self, handle: Gpu) -> list[int]:  # noqa: N802
        return [1, 1]

    def nvmlDeviceGetPowerManagementLimit(self, handle: Gpu) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetApplicationsClock(self, handle: Gpu, type: int) -> int:  # noqa: N802, A002
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:  # noqa: N802
        return self._temperature_c

    def nvmlDeviceGetClockInfo(self, handle: Gpu, type: int) -> int:  # noqa: N802, A002
        return 1980

    def nvmlDeviceGetNvLinkState(self, device: Gpu, link: int) -> int:  # noqa: N802
        if device.links == 0:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        if link >= device.links:
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetNvLinkVersion(self, device: Gpu, link: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Gpu, device2: Gpu) -> int:  # noqa: N802
        return 50

    def nvmlDeviceGetP2PStatus(self, device1: Gpu, device2: Gpu, p2pIndex: int) -> int:  # noqa: N802, N803
        return 0 if device1.links and device2.links else 5

    def _told(self, text: str) -> Any:
        return text.encode() if self._as_bytes else text

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in dir(type(self)) if name.startswith("nvml")}

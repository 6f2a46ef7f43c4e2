"""The NVIDIA GPUs that a process sees, by NVML (``nvidia-ml-py``) or, without it, by the driver's files.

Only what stays the same from one start to the next: names, capability, size, modes and limits that somebody
set, and how the GPUs are connected. Serial numbers, UUIDs and bus addresses are never read into a record.
Clocks, temperature and free memory are told apart, as volatile.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pathlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from engines.identity.collect_values import text_value
from engines.identity.record import UnknownField

_DRIVER_FILES = pathlib.Path("/proc/driver/nvidia")
_DEVICE = pathlib.Path("/dev/nvidiactl")
_NO_PYNVML = "nvidia-ml-py (pynvml) is not installed where this runs"
_COPY = "forkgate_pynvml_copy"
_LINKS_AT_MOST = 36
_ANCESTORS = {
    "NVML_TOPOLOGY_INTERNAL": "one board",
    "NVML_TOPOLOGY_SINGLE": "PIX",
    "NVML_TOPOLOGY_MULTIPLE": "PXB",
    "NVML_TOPOLOGY_HOSTBRIDGE": "PHB",
    "NVML_TOPOLOGY_NODE": "NODE",
    "NVML_TOPOLOGY_SYSTEM": "SYS",
}
"""NVML's name of what two GPUs have in common → the word that ``nvidia-smi topo`` prints for it."""


def find_pynvml(package_folders: tuple[pathlib.Path, ...] = ()) -> Any | None:
    """The module, from our own Python or from the engine's packages (vLLM ships a copy); None without one.

    ``package_folders`` must be of this file system and trusted: the module found there is run.
    """
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        pass
    for folder in package_folders:
        for name in ("pynvml.py", "vllm/third_party/pynvml.py"):
            path = folder / name
            if path.is_file():
                spec = importlib.util.spec_from_file_location(_COPY, path)
                if spec is not None and spec.loader is not None:
                    module = importlib.util.module_from_spec(spec)
                    # It makes its exceptions by looking itself up; under a name that nobody else imports.
                    sys.modules[_COPY] = module
                    spec.loader.exec_module(module)
                    return module
    return None


def gpus(
    nvml: Any | None, variables: Mapping[str, str] | UnknownField, driver_files: pathlib.Path = _DRIVER_FILES
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the GPUs that a process with these ``variables`` sees, and the volatile facts beside them."""
    if nvml is None:
        return _from_driver_files(driver_files, variables, _NO_PYNVML), {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _from_driver_files(driver_files, variables, f"NVML: {_words(error)}"), {}
    try:
        return _Reader(nvml, variables).read()
    finally:
        # What was read stands, whatever becomes of the library.
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


class _Reader:
    """One look at every GPU, the library being open."""

    def __init__(self, nvml: Any, variables: Mapping[str, str] | UnknownField) -> None:
        self._nvml = nvml
        self._variables = variables
        self._fields: dict[str, Any] = {}
        self._volatile: dict[str, Any] = {}
        self._sliced = False

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self._fields["gpu.driver"] = self._ask("nvmlSystemGetDriverVersion", then=_text)
        self._fields["cuda.driver"] = self._ask(
            "nvmlSystemGetCudaDriverVersion_v2", then=lambda told: f"{told // 1000}.{told % 1000 // 10}"
        )
        handles = self._visible()
        if isinstance(handles, UnknownField):
            self._fields |= {"gpu.count": handles, "topology.links": handles}
            return self._fields, self._volatile
        self._fields["gpu.count"] = len(handles)
        for place, handle in enumerate(handles):
            self._device(f"gpu.{place}", handle)
        self._fields["topology.links"] = self._links(handles)
        return self._fields, self._volatile

    def _ask(self, function: str, *arguments: Any, then: Callable[[Any], Any] | None = None) -> Any:
        """An answer of NVML's, or why there is none. A function that an old module lacks is such a reason."""
        try:
            told = getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            return UnknownField(f"NVML: {_words(error)}")
        except AttributeError:
            return UnknownField("the installed nvidia-ml-py has no function for it")
        return told if then is None else then(told)

    def _visible(self) -> list[Any] | UnknownField:
        """The handles that CUDA would show the process, in its order."""
        count = self._ask("nvmlDeviceGetCount")
        if isinstance(count, UnknownField):
            return count
        every = [self._ask("nvmlDeviceGetHandleByIndex", place) for place in range(count)]
        lost = next((one for one in every if isinstance(one, UnknownField)), None)
        if lost is not None:
            return lost
        if isinstance(self._variables, UnknownField):
            return self._variables
        asked = self._variables.get("CUDA_VISIBLE_DEVICES")
        if asked is None:
            return every
        items = [one.strip() for one in asked.split(",")]
        if any(one.startswith("MIG-") for one in items):
            return self._slices(every, items)
        names = {str(self._ask("nvmlDeviceGetName", one, then=_text)) for one in every}
        numbered = any(one.isdigit() for one in items)
        if numbered and len(names) > 1 and self._variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            return UnknownField(
                "GPUs of several models, chosen by number in CUDA's own order, which NVML does not tell: set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        return self._chosen(every, items)

    def _chosen(self, every: list[Any], items: list[str]) -> list[Any]:
        chosen: list[Any] = []
        for item in items:
            if item.isdigit():
                found = every[int(item)] if int(item) < len(every) else None
            else:
                found = next((one for one in every if item and self._uuid(one).startswith(item)), None)
            if found is None:
                break  # as CUDA does: what follows an invalid entry is not visible
            chosen.append(found)
        return chosen

    def _slices(self, every: list[Any], items: list[str]) -> list[Any] | UnknownField:
        slices = {}
        for device in every:
            count = self._ask("nvmlDeviceGetMaxMigDeviceCount", device)
            for place in range(count if isinstance(count, int) else 0):
                handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", device, place)
                if not isinstance(handle, UnknownField):
                    slices[self._uuid(handle)] = handle
        chosen = [slices[one] for one in items if one in slices]
        self._sliced = True
        return chosen or UnknownField("the MIG slice that CUDA_VISIBLE_DEVICES names is not seen by NVML")

    def _uuid(self, handle: Any) -> str:
        # Only compared with what the process asks for; never recorded.
        return str(self._ask("nvmlDeviceGetUUID", handle, then=_raw))

    def _device(self, name: str, handle: Any) -> None:
        nvml = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        known = not isinstance(memory, UnknownField)
        graphics = self._ask("nvmlDeviceGetApplicationsClock", handle, nvml.NVML_CLOCK_GRAPHICS)
        memory_clock = self._ask("nvmlDeviceGetApplicationsClock", handle, nvml.NVML_CLOCK_MEM)
        clocks_known = isinstance(graphics, int) and isinstance(memory_clock, int)
        self._fields |= {
            f"{name}.name": self._ask("nvmlDeviceGetName", handle, then=_text),
            f"{name}.compute_capability": self._ask(
                "nvmlDeviceGetCudaComputeCapability", handle, then=lambda told: f"{told[0]}.{told[1]}"
            ),
            f"{name}.cores": self._ask("nvmlDeviceGetNumGpuCores", handle),
            f"{name}.memory_bytes": int(memory.total) if known else memory,
            # The current mode of two; the pending one comes with the next start.
            f"{name}.mig": self._sliced
            or self._ask("nvmlDeviceGetMigMode", handle, then=lambda told: bool(told[0])),
            f"{name}.ecc": self._ask("nvmlDeviceGetEccMode", handle, then=lambda told: bool(told[0])),
            f"{name}.power_limit_w": self._ask(
                "nvmlDeviceGetPowerManagementLimit", handle, then=lambda told: round(told / 1000)
            ),
            f"{name}.application_clocks_mhz": (
                {"graphics": graphics, "memory": memory_clock} if clocks_known else graphics
            ),
            f"{name}.nvlink": self._nvlink(handle),
        }
        self._volatile[name] = {
            "memory_free_bytes": int(memory.free) if known else None,
            "temperature_c": self._number("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        }

    def _number(self, function: str, *arguments: Any) -> int | None:
        told = self._ask(function, *arguments)
        return told if isinstance(told, int) else None

    def _nvlink(self, handle: Any) -> Any:
        """How many links are up, and their version: the links of a GPU are of one kind."""
        up, version = 0, None
        for link in range(_LINKS_AT_MOST):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if isinstance(state, UnknownField):
                if link == 0:
                    return state
                break  # past the last link that this GPU has
            if state == self._nvml.NVML_FEATURE_ENABLED:
                up += 1
                version = version or self._number("nvmlDeviceGetNvLinkVersion", handle, link)
        return {"links_up": up, "version": version}

    def _links(self, handles: list[Any]) -> Any:
        """``{"0-1": "NODE+NVLINK"}``: the nearest common ancestor, and whether peers reach each other."""
        nvml = self._nvml
        words = {getattr(nvml, name): word for name, word in _ANCESTORS.items() if hasattr(nvml, name)}
        found: dict[str, Any] = {}
        for a, left in enumerate(handles):
            for b, right in enumerate(handles[a + 1 :], start=a + 1):
                level = self._ask("nvmlDeviceGetTopologyCommonAncestor", left, right)
                if isinstance(level, UnknownField):
                    return level
                status = self._ask("nvmlDeviceGetP2PStatus", left, right, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
                linked = "+NVLINK" if status == nvml.NVML_P2P_STATUS_OK else ""
                found[f"{a}-{b}"] = f"{words.get(level, level)}{linked}"
        return found


def _from_driver_files(
    folder: pathlib.Path, variables: Mapping[str, str] | UnknownField, why_not_nvml: str
) -> dict[str, Any]:
    """Without NVML: the driver's version, and the GPUs' names where the process sees them all."""
    missing = UnknownField(why_not_nvml)
    try:
        text = (folder / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if _DEVICE.exists():
            return dict.fromkeys(("gpu.count", "gpu.driver", "cuda.driver", "topology.links"), missing)
        none = UnknownField("no NVIDIA driver is loaded here")
        return {"gpu.count": 0, "gpu.driver": none, "cuda.driver": none, "topology.links": {}}
    matched = re.search(r"Kernel Module\s+(?:for \S+\s+)?([0-9.]+)", text)
    fields: dict[str, Any] = {
        "gpu.driver": matched[1] if matched else UnknownField("/proc/driver/nvidia/version has no version"),
        "cuda.driver": missing,
        "topology.links": missing,
        "gpu.count": missing,
    }
    if isinstance(variables, UnknownField) or "CUDA_VISIBLE_DEVICES" in variables:
        return fields
    names = []
    for path in sorted((folder / "gpus").glob("*/information")):
        try:
            told = re.search(r"^Model:\s*(.+)$", path.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            return fields
        names.append(text_value(told[1]) if told else UnknownField("the driver's file names no model"))
    if not names:
        return fields
    fields["gpu.count"] = len(names)
    for place, name in enumerate(names):
        fields[f"gpu.{place}.name"] = name
        fields[f"gpu.{place}.compute_capability"] = missing
    return fields


def _raw(told: str | bytes) -> str:
    # Modules before 11.5 answer bytes.
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else told


def _text(told: str | bytes) -> Any:
    return text_value(_raw(told))


def _words(error: Exception) -> str:
    return re.sub(r"[^A-Za-z0-9 .,/'-]", " ", str(error))[:100]

"""The GPUs of a process, read from an NVML that is not there: functions and types are the real module's."""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import sys
from typing import Any

import pytest

from engines.identity import collect_gpu
from engines.identity.collect_gpu import find_pynvml, gpus
from engines.identity.record import Identity, UnknownField
from tests.support.fake_nvml import FakeNvml, Gpu

SIGNATURES = json.loads(
    (pathlib.Path(__file__).parents[2] / "data" / "environment" / "pynvml_signatures.json").read_text()
)
H100 = Gpu()
SECOND = Gpu(uuid="GPU-22222222-aaaa-bbbb-cccc-000000000000")
A10 = Gpu(name="NVIDIA A10", uuid="GPU-33333333-aaaa", capability=(8, 6), memory_bytes=24 << 30, links=0)


def fields(*devices: Gpu, variables: Any = None, **changes: Any) -> dict[str, Any]:
    nvml = FakeNvml(*devices, **changes)
    told, _ = gpus(nvml, variables if variables is not None else {})
    assert nvml.open == 0
    return told


def test_the_fake_has_the_functions_of_the_real_module() -> None:
    assert {
        name: list(inspect.signature(function).parameters)
        for name, function in FakeNvml().functions().items()
    } == SIGNATURES["functions"]
    constants = {name: getattr(FakeNvml, name) for name in dir(FakeNvml) if name.startswith("NVML_")}
    assert constants == SIGNATURES["constants"]


def test_nothing_is_called_that_the_real_module_lacks() -> None:
    source = pathlib.Path(collect_gpu.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"\bnvml[A-Z]\w+", source)) == set(SIGNATURES["functions"])
    assert set(re.findall(r"\bNVML_[A-Z0-9_]+", source)) == set(SIGNATURES["constants"])


def test_two_linked_gpus() -> None:
    told = fields(H100, SECOND)
    assert told["gpu.count"] == 2
    assert told["gpu.driver"] == "550.54.15"
    assert told["cuda.driver"] == "12.4"
    assert told["gpu.1.name"] == "NVIDIA H100 80GB HBM3"
    assert told["gpu.1.compute_capability"] == "9.0"
    assert told["gpu.0.memory_bytes"] == 85_520_809_984
    assert (told["gpu.0.mig"], told["gpu.0.ecc"], told["gpu.0.power_limit_w"]) == (False, True, 700)
    assert told["gpu.0.nvlink"] == {"links_up": 18, "version": 7}
    assert told["topology.links"] == {"0-1": "SYS+NVLINK"}
    assert told["gpu.0.application_clocks_mhz"] == UnknownField("NVML: Not Supported")


def test_what_is_volatile_is_told_apart_and_moves_no_digest() -> None:
    cold, cold_facts = gpus(FakeNvml(H100, free_bytes=10, temperature_c=31), {})
    hot, hot_facts = gpus(FakeNvml(H100, free_bytes=99, temperature_c=84), {})
    assert Identity(fields=cold).digest == Identity(fields=hot).digest
    assert cold_facts["gpu.0"] == {"memory_free_bytes": 10, "temperature_c": 31, "sm_clock_mhz": 1980}
    assert hot_facts["gpu.0"]["temperature_c"] == 84


def test_no_uuid_is_recorded_whatever_is_asked_for() -> None:
    for variables in ({}, {"CUDA_VISIBLE_DEVICES": SECOND.uuid}):
        assert "GPU-" not in json.dumps(
            [str(one) for one in fields(H100, SECOND, variables=variables).items()]
        )


def test_the_same_kind_of_gpu_at_another_place_is_the_same_environment() -> None:
    first = fields(H100, SECOND, variables={"CUDA_VISIBLE_DEVICES": "0"})
    second = fields(H100, SECOND, variables={"CUDA_VISIBLE_DEVICES": "1"})
    assert first["gpu.count"] == 1
    assert Identity(fields=first).digest == Identity(fields=second).digest


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("GPU-3333", ["NVIDIA A10"]),
        ("", []),
        ("-1", []),
        ("GPU-3333,9,0", ["NVIDIA A10"]),
        (f"{A10.uuid},{H100.uuid}", ["NVIDIA A10", "NVIDIA H100 80GB HBM3"]),
    ],
)
def test_only_what_cuda_shows_the_process_is_recorded(asked: str, names: list[str]) -> None:
    told = fields(H100, A10, variables={"CUDA_VISIBLE_DEVICES": asked, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [told[f"gpu.{place}.name"] for place in range(told["gpu.count"])] == names


def test_numbers_among_several_models_are_ambiguous() -> None:
    told = fields(H100, A10, variables={"CUDA_VISIBLE_DEVICES": "0"})
    assert isinstance(told["gpu.count"], UnknownField)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in told["gpu.count"].reason
    assert "gpu.0.name" not in told


def test_a_slice_of_a_gpu() -> None:
    part = Gpu(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", uuid="MIG-44444444-aaaa", memory_bytes=10 << 30)
    whole = Gpu(mig=True, slices=(part,))
    told = fields(whole, variables={"CUDA_VISIBLE_DEVICES": part.uuid})
    assert told["gpu.count"] == 1
    assert told["gpu.0.name"] == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert told["gpu.0.mig"] is True
    gone = fields(whole, variables={"CUDA_VISIBLE_DEVICES": "MIG-none"})
    assert "MIG slice" in gone["gpu.count"].reason


def test_an_old_module_lacks_a_function_and_says_so() -> None:
    told = fields(H100, absent=frozenset({"nvmlDeviceGetNumGpuCores"}), as_bytes=True)
    assert told["gpu.0.cores"] == UnknownField("the installed nvidia-ml-py has no function for it")
    assert told["gpu.0.name"] == "NVIDIA H100 80GB HBM3"
    assert told["gpu.driver"] == "550.54.15"


def test_variables_that_were_not_seen_leave_the_gpus_unknown() -> None:
    told = fields(H100, variables=UnknownField("not allowed"))
    assert told["gpu.count"] == UnknownField("not allowed")


def test_without_nvml_the_driver_s_files_tell_what_they_know(tmp_path: pathlib.Path) -> None:
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    )
    (tmp_path / "gpus" / "0000:07:00.0").mkdir(parents=True)
    (tmp_path / "gpus" / "0000:07:00.0" / "information").write_text(
        "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 0\nGPU UUID: \t GPU-555\n"
    )
    told, _ = gpus(None, {}, tmp_path)
    assert (told["gpu.driver"], told["gpu.count"]) == ("535.104.05", 1)
    assert told["gpu.0.name"] == "NVIDIA A100-SXM4-80GB"
    assert "pynvml" in told["cuda.driver"].reason
    narrowed, _ = gpus(None, {"CUDA_VISIBLE_DEVICES": "0"}, tmp_path)
    assert isinstance(narrowed["gpu.count"], UnknownField)
    refused, _ = gpus(FakeNvml(library=False), {}, tmp_path)
    assert refused["cuda.driver"] == UnknownField("NVML: NVML Shared Library Not Found")


def test_no_driver_is_no_gpu_with_and_without_the_module(tmp_path: pathlib.Path) -> None:
    without, _ = gpus(None, {}, tmp_path / "none")
    with_it, _ = gpus(FakeNvml(library=False), {}, tmp_path / "none")
    assert without == with_it
    assert (without["gpu.count"], without["topology.links"]) == (0, {})


def test_the_copy_that_an_engine_ships_is_found(tmp_path: pathlib.Path) -> None:
    shipped = tmp_path / "vllm" / "third_party"
    shipped.mkdir(parents=True)
    (shipped / "pynvml.py").write_text("marker = 'the copy'\n")
    found = find_pynvml((tmp_path,))
    assert found is not None
    assert getattr(found, "marker", "the installed one") in ("the copy", "the installed one")


def test_a_copy_that_looks_itself_up_by_its_name_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    copy = tmp_path / "vllm" / "third_party" / "pynvml.py"
    copy.parent.mkdir(parents=True)
    # As NVIDIA's module does at its end, to make a class of each error.
    copy.write_text("import sys\nthis_module = sys.modules[__name__]\nsetattr(this_module, 'made', True)\n")
    found = find_pynvml((tmp_path,))
    assert found is not None
    assert found.made

"""The machine without its GPUs: processor, instruction sets, threads, C library, system, compiler."""

from __future__ import annotations

import pathlib
import platform
import re
import shutil
import subprocess
from typing import Any

from engines.identity.collect_process import Process
from engines.identity.collect_values import text_value
from engines.identity.record import UnknownField

# What changes the numbers an x86 or Arm kernel library picks. The other flags only make noise.
_NUMERIC_FLAGS = frozenset(
    {"sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
    | {"avx512_vnni", "avx512_bf16", "avx512_fp16", "avx10", "amx_tile", "amx_bf16", "amx_fp16", "amx_int8"}
    | {"asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"}
)
_COMPILERS = ("g++", "c++", "clang++")
_COMPILER_S = 60.0
"""On a busy machine it may take seconds, and an environment is the same one there."""


def machine(process: Process) -> dict[str, Any]:
    """The fields of the machine that ``process`` runs on."""
    fields: dict[str, Any] = {
        "cpu.model": cpu_model(),
        "cpu.instruction_sets": cpu_flags(),
        "cpu.architecture": platform.machine() or UnknownField("the system tells none"),
        "cpu.allowed": process.allowed_cpus,
        "os.kernel": platform.release() or UnknownField("the system tells none"),
        "os.name": _os_name(process.root),
    }
    if process.same_root:
        fields["os.libc"] = _libc()
        fields["compiler.host"] = _compiler()
    else:
        fields["compiler.host"] = UnknownField("the process has files of its own: capture in its container")
        fields["os.libc"] = UnknownField("the process has files of its own: capture in its container")
    if process.own_python:
        fields["python.version"] = platform.python_version()
        fields["python.implementation"] = platform.python_implementation()
        fields["compiler.python"] = text_value(platform.python_compiler())
    return fields


def cpu_model() -> str | UnknownField:
    """The CPU's own name, e.g. ``AMD EPYC 7763``."""
    name = _cpuinfo("model name") or _cpuinfo("CPU part") or platform.processor()
    return name or UnknownField("/proc/cpuinfo has no model name and the platform tells none")


def cpu_flags() -> list[str] | UnknownField:
    """The instruction set extensions that numeric kernels are chosen by, sorted."""
    flags = _cpuinfo("flags") or _cpuinfo("Features")
    if flags is None:
        return UnknownField("/proc/cpuinfo lists no flags")
    return sorted(_NUMERIC_FLAGS.intersection(flags.split()))


def _cpuinfo(key: str) -> str | None:
    """First value of ``key`` in /proc/cpuinfo; None where there is no such file or key."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, separator, value = line.partition(":")
        if separator and name.strip() == key:
            return value.strip()
    return None


def _os_name(root: pathlib.Path) -> Any:
    for path in ("etc/os-release", "usr/lib/os-release"):
        try:
            text = (root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        told = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
        if "ID" in told:
            return text_value(f"{told['ID']} {told.get('VERSION_ID', '')}")
    return UnknownField("/etc/os-release tells none")


def _libc() -> Any:
    name, version = platform.libc_ver()
    return (
        f"{name} {version}" if name and version else UnknownField("the C library does not tell its version")
    )


def _compiler() -> Any:
    """The C++ compiler that kernels made at run time would be compiled with."""
    path = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if path is None:
        return UnknownField("no C++ compiler was found beside the engine")
    try:
        ended = subprocess.run(
            [path, "--version"],
            capture_output=True,
            timeout=_COMPILER_S,
            check=True,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return UnknownField("the C++ compiler does not tell its version")
    return text_value((ended.stdout.splitlines() or [""])[0].replace("~", "-"))

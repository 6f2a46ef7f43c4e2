"""The environment record and its digest. Standard library only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import platform
from collections.abc import Iterable, Mapping
from typing import Any

IDENTITY_HEADER = "x-forkgate-environment"
"""Response header in which an engine tells the digest of the environment that answers."""

_READ_BYTES = 1 << 20
# What changes the numbers an x86 or Arm kernel library picks. The other flags only make noise.
_NUMERIC_FLAGS = frozenset(
    {"avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
    | {"avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16", "amx_int8"}
    | {"asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class UnknownField:
    """A field of the record that could not be read here, and why. It is part of the digest all the same."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An environment, as name → JSON value or :class:`UnknownField`.

    Raises:
        TypeError: from :attr:`digest`, when a value is not JSON.
    """

    fields: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hex digits over the canonical JSON of the fields."""
        text = json.dumps(
            self._plain(), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
        )
        return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """``{"digest": ..., "fields": {...}}``; an unknown field reads ``{"unknown": reason}``."""
        return {"digest": self.digest, "fields": self._plain()}

    def _plain(self) -> dict[str, Any]:
        return {
            name: {"unknown": value.reason} if isinstance(value, UnknownField) else value
            for name, value in self.fields.items()
        }


def sha256_of_file(path: pathlib.Path) -> str:
    """Hex SHA-256 of a file, read in pieces. Raises :class:`OSError`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def files_sha256(folder: pathlib.Path, suffixes: Iterable[str]) -> dict[str, str]:
    """Relative name → hex SHA-256 of every file under ``folder`` with one of ``suffixes``, sorted by name.

    Raises:
        FileNotFoundError: nothing matched; a record of no files would look like proof and be none.
    """
    wanted = tuple(suffixes)
    found = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and path.name.endswith(wanted)
    }
    if not found:
        raise FileNotFoundError(f"{folder}: no file ends with one of {wanted}")
    return {name: sha256_of_file(found[name]) for name in sorted(found)}


def artifact_digest(files: Mapping[str, str]) -> str:
    """One digest of an artifact's files (name → hex SHA-256, as :func:`files_sha256` gives them)."""
    text = json.dumps(dict(files), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


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
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        name, separator, value = line.partition(":")
        if separator and name.strip() == key:
            return value.strip()
    return None

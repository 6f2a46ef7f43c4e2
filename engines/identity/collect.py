"""Capturing an environment: every source is asked, the engine's own word goes before what stands beside it.

::

    collect_process  /proc: command line, variables, loaded libraries     ─┐
    collect_http     the engine's endpoints                                │
    collect_flags    what the command line sets                            ├─▶ merge ─▶ Identity
    collect_variables, collect_packages, collect_gpu, collect_cpu, ...    ─┘

Beside an engine (``pid``), about an engine far away (``url`` alone: nothing of this machine is recorded), or
about this process itself. Nothing heavy is imported; torch only where it is asked for.
"""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Mapping
from typing import Any

from engines.identity import (
    collect_cpu,
    collect_flags,
    collect_gpu,
    collect_http,
    collect_packages,
    collect_torch,
    collect_variables,
)
from engines.identity.collect_container import container
from engines.identity.collect_process import Process, process, this_process
from engines.identity.environment import complete
from engines.identity.image import image
from engines.identity.record import Identity, UnknownField

_FAR = "only the endpoint was asked: give --pid beside the engine, or capture inside its container"


def capture(
    *,
    pid: int | None = None,
    url: str | None = None,
    image_digest: str | None = None,
    ask_torch: bool = False,
    key: str | None = None,
    own: Mapping[str, Any] | None = None,
) -> Identity:
    """The record of an environment.

    Args:
        pid: of an engine on this machine. Without it and without ``url``, this process is described.
        url: of an engine's HTTP face. Alone, it says nothing of this machine.
        image_digest: of the container image, which no process can see from inside.
        ask_torch: import torch and ask it; for the process of this interpreter only.
        key: of the engine's HTTP face, where it wants one. It is sent and never recorded.
        own: fields that the caller knows of itself (an engine, from inside); they go before all others.

    Raises:
        ArtifactError: no such process, nobody answers at the URL, or a record served there was changed.
        ValueError: a ``url`` that is none.
    """
    endpoint = None if url is None else collect_http.Endpoint(url, key=key)
    merge, told = _Merge(), collect_http.Told()
    if own is not None:
        merge.add(own, "engine")
    if endpoint is not None:
        told = collect_http.ask(endpoint)
        merge.add(told.fields, told.sources)
        merge.notes += [
            f"{path}: the engine wants {'a' if key is None else 'another'} key (--api-key-env)"
            for path in endpoint.refused
        ]
    if endpoint is not None and pid is None:
        if image_digest is not None:
            merge.add({"container.image": image(image_digest)}, "argument")
        if told.record is not None:
            return merge.as_served(told.record, {})
        merge.add(told.late, "/server_info")
        merge.add(dict.fromkeys(complete({}), UnknownField(_FAR)), "")
        return merge.identity({})
    looked_at = this_process() if pid is None else process(pid)
    _beside(merge, looked_at, pid=pid, image_digest=image_digest, ask_torch=ask_torch)
    merge.add(told.late, "/server_info")
    if told.record is not None:
        return merge.as_served(told.record, merge.volatile)
    return merge.identity(merge.volatile)


def _beside(
    merge: _Merge, looked_at: Process, *, pid: int | None, image_digest: str | None, ask_torch: bool
) -> None:
    engine = merge.fields.get("engine.name")
    if not isinstance(engine, str):
        engine = collect_flags.engine_of(looked_at.arguments)
        if engine is not None:
            merge.add({"engine.name": engine}, "command line")
    known = engine in collect_packages.ENGINES and not isinstance(looked_at.arguments, UnknownField)
    if known and engine == collect_flags.engine_of(looked_at.arguments):
        assert not isinstance(looked_at.arguments, UnknownField)
        merge.add(collect_flags.flags(str(engine), looked_at.arguments), "command line")
    elif isinstance(looked_at.arguments, UnknownField):
        merge.add({"engine.flags_unlisted": looked_at.arguments}, "/proc")
    if ask_torch:
        if looked_at.own_python and pid is None:
            merge.add(collect_torch.torch_facts(), "torch")
        else:
            reason = UnknownField("torch was asked, and another process's torch cannot be asked from here")
            merge.add({"precision.tf32": reason, "cpu.capability": reason}, "")
    merge.add(collect_variables.variables(looked_at.variables), "variables")
    packages, every = collect_packages.packages(looked_at)
    if isinstance(engine, str):
        merge.add(collect_packages.engine(engine, looked_at, every), "packages")
    merge.add(packages, "packages")
    merge.packages = every
    nvml = collect_gpu.find_pynvml(looked_at.package_folders if pid is None else ())
    gpu_fields, merge.volatile = collect_gpu.gpus(nvml, looked_at.variables)
    merge.add(gpu_fields, "nvml" if nvml is not None else "driver files")
    merge.add(collect_cpu.machine(looked_at), "system")
    cgroup = pathlib.Path("/proc") / ("self" if pid is None else str(pid)) / "cgroup"
    merge.add({"container.image": container(looked_at, image_digest, cgroup)}, "container")


def _captured_at() -> dict[str, str]:
    now = datetime.datetime.now(datetime.timezone.utc)  # noqa: UP017  # Python 3.10 has no datetime.UTC
    return {"captured_at": now.isoformat(timespec="seconds")}


class _Merge:
    """Fields by the order in which they are added: the first that is known stays, a later one is a note."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.volatile: dict[str, Any] = {}
        self.packages: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self.notes: list[str] = []

    def add(self, found: Mapping[str, Any], source: str | Mapping[str, str]) -> None:
        for name, value in found.items():
            came_from = source if isinstance(source, str) else source.get(name, "")
            if name not in self.fields or isinstance(self.fields[name], UnknownField):
                # Of two reasons the first is the nearer one to the engine.
                if name in self.fields and isinstance(value, UnknownField):
                    continue
                self.fields[name] = value
                if came_from:
                    self._sources[name] = came_from
            elif not isinstance(value, UnknownField) and value != self.fields[name]:
                self.notes.append(
                    f"{name}: {self._sources.get(name)} says {self.fields[name]!r} and is believed, "
                    f"{came_from} says {value!r}"
                )

    def identity(self, volatile: Mapping[str, Any]) -> Identity:
        about = {**self.about(), **_captured_at()}
        if volatile:
            about["volatile"] = dict(volatile)
        return Identity(fields=complete(self.fields), about=about)

    def as_served(self, served: Identity, volatile: Mapping[str, Any]) -> Identity:
        """The engine's own record, since its answers carry that digest; what else was seen is a note."""
        made = self.identity(volatile)
        more = [
            f"{name}: unknown to the engine itself; seen beside it: {value!r}"
            for name, value in made.fields.items()
            if not isinstance(value, UnknownField) and isinstance(served.fields.get(name), UnknownField)
        ]
        about = dict(made.about)
        if more:
            about["notes"] = [*about.get("notes", ()), *more]
        return Identity(fields=served.fields, about=about)

    def about(self) -> dict[str, Any]:
        told: dict[str, Any] = {"sources": dict(sorted(self._sources.items()))}
        if self.notes:
            told["notes"] = self.notes
        if self.packages:
            told["packages"] = self.packages
        return told

"""The image that a process's container was made from: given, or told by files of a container runtime."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from engines.identity.collect_process import Process
from engines.identity.image import IMAGE_VARIABLE, image
from engines.identity.record import UnknownField
from engines.identity.trouble import NoArtifact

_DOCKER = pathlib.Path("/var/lib/docker/containers")
_CONTAINER_ID = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:$|/)", re.MULTILINE)


def container(
    process: Process,
    told: str | None,
    cgroup: pathlib.Path | None,
    docker: pathlib.Path = _DOCKER,
) -> Any:
    """``{"digest": ...}`` of a registry's manifest, ``{"id": ...}`` of a local image, or why it is unknown.

    Args:
        told: ``sha256:...`` or ``name@sha256:...``, from whoever started the container.
        cgroup: the process's ``/proc/PID/cgroup``, where a container's name may stand.

    Raises:
        NoArtifact: what was told is no digest.
    """
    variables = process.variables
    if told is None and not isinstance(variables, UnknownField):
        told = variables.get(IMAGE_VARIABLE) or None
    if told is not None:
        return image(told)
    # Read for this process alone: our own variables are not those of another one.
    try:
        found = image_of_file(process.root / "run/.containerenv")
    except OSError:
        found = None
    return found or _by_docker(cgroup, docker) or _unknown(process)


def image_of_file(path: pathlib.Path) -> dict[str, str] | None:
    """podman writes the ID of the image into the container. Raises :class:`OSError`."""
    text = path.read_text(encoding="utf-8", errors="replace")
    matched = re.search(r'^imageid="(?:sha256:)?([0-9a-f]{64})"', text, re.MULTILINE)
    return {"id": f"sha256:{matched[1]}"} if matched else None


def _by_docker(cgroup: pathlib.Path | None, docker: pathlib.Path) -> dict[str, str] | None:
    """On a Docker host, as root: the container's own file names the image that it was made from."""
    if cgroup is None:
        return None
    try:
        matched = _CONTAINER_ID.search(cgroup.read_text(encoding="utf-8", errors="replace"))
        if matched is None:
            return None
        document = json.loads((docker / matched[1] / "config.v2.json").read_bytes())
        made_from = document["Image"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = isinstance(made_from, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", made_from)
    return {"id": made_from} if known else None


def _unknown(process: Process) -> UnknownField:
    if any((process.root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return UnknownField(
            "a container, whose runtime tells no image inside: give --image-digest or set "
            f"{IMAGE_VARIABLE} where it is started"
        )
    return UnknownField("not given, and no file of a container runtime tells it")


__all__ = ["NoArtifact", "container", "image_of_file"]

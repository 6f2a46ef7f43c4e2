"""The runtime image that an engine runs in: given, or told by the container's own files.

A process in a container cannot see the digest of its image; of the common runtimes only podman tells an
image ID, in ``/run/.containerenv``. So the digest is normally given, by whoever starts the container.
"""

from __future__ import annotations

import os
import pathlib
import re

from engines.identity.trouble import NoArtifact

IMAGE_VARIABLE = "FORKGATE_IMAGE_DIGEST"
# One text, so that two records without an image have one digest.
UNKNOWN_IMAGE = {"unknown": "not given, and no file of a container runtime tells it"}
_DIGEST = re.compile(r"(?:.*@)?(sha256:[0-9a-f]{64})")
_CONTAINER_FILE = pathlib.Path("/run/.containerenv")


def image(told: str | None = None, container_file: pathlib.Path = _CONTAINER_FILE) -> dict[str, str]:
    """``{"digest": ...}`` of a registry's manifest, ``{"id": ...}`` of a local image, ``{"unknown": why}``.

    Args:
        told: ``sha256:...`` or ``name@sha256:...``; ``$FORKGATE_IMAGE_DIGEST`` when None.

    Raises:
        NoArtifact: what was told is no digest (a tag can be moved, so it names no image).
    """
    source = "--image-digest" if told is not None else f"${IMAGE_VARIABLE}"
    told = told if told is not None else os.environ.get(IMAGE_VARIABLE) or None
    if told is not None:
        matched = _DIGEST.fullmatch(told)
        if matched is None:
            raise NoArtifact(
                f"{source}: {told!r} is no image digest: give sha256: and 64 hex digits, as "
                "`docker image inspect --format '{{.RepoDigests}}' IMAGE` prints it; a tag names no one image"
            )
        return {"digest": matched[1]}
    try:
        text = container_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return dict(UNKNOWN_IMAGE)
    found = re.search(r'^imageid="(?:sha256:)?([0-9a-f]{64})"', text, re.MULTILINE)
    return {"id": f"sha256:{found[1]}"} if found else dict(UNKNOWN_IMAGE)

"""The mark that a request of ours carries into the engine core, and the key that its steps are told under.

A request is ours when it has the header ``x-forkgate-shadow`` and an ``x-request-id``. The engine core sees
no header, only sampling parameters, so the same ID stands among them too (``vllm_xargs`` of an OpenAI
request, ``extra_args`` in vLLM's words). A mark without the header is written to the channel, and read by
nobody.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

MARK = "forkgate_batch"
"""Name of the mark among a request's extra arguments; the value is its ``x-request-id``."""
KEY_BYTES = 16
_ID = re.compile(r"[!-~]{1,256}")


def key_of(request_id: object) -> bytes | None:
    """The key of a request's steps; None for what is no ID: 1 to 256 visible ASCII characters."""
    if not isinstance(request_id, str) or _ID.fullmatch(request_id) is None:
        return None
    return hashlib.blake2b(request_id.encode("ascii"), digest_size=KEY_BYTES).digest()


def mark_of(extra_args: Mapping[str, Any] | None) -> bytes | None:
    """The key of a marked request, by its sampling parameters' ``extra_args``."""
    if not extra_args or MARK not in extra_args:
        return None
    return key_of(extra_args[MARK])


def check(extra_args: Mapping[str, Any] | None) -> None:
    """Raises :class:`ValueError`, which vLLM answers as HTTP 400, for a mark that is no ID."""
    if extra_args and MARK in extra_args and key_of(extra_args[MARK]) is None:
        raise ValueError(
            f"vllm_xargs.{MARK}: must be the request's x-request-id, 1 to 256 visible ASCII characters"
        )

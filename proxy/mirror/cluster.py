"""Which captures ask the same thing again: the same prompt, or a later turn of the same conversation."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import orjson

from engines.base import Call

_OPENING = ("system", "developer")


def cluster_of(call: Call) -> str:
    """16 hex digits that name the prompt or the conversation of a call.

    A conversation is known by how it opens: everything up to and including its first turn that is not an
    instruction, so that each later turn falls into the same cluster. Two users who open alike share one, and
    the second says nothing new.
    """
    said: Any = call.body.get("messages") or call.body.get("prompt") or call.body.get("input")
    if isinstance(said, list):
        said = _opening(said)
    raw = orjson.dumps([call.model, call.body.get("system"), said])
    return blake2b(raw, digest_size=8).hexdigest()


def _opening(turns: list[Any]) -> list[Any]:
    """The first turns, up to the first that a user took; all of a list that is no list of turns."""
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            return turns
        if turn.get("role") not in _OPENING:
            return turns[: index + 1]
    return turns

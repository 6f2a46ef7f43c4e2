"""Which captures ask the same thing again: the same prompt, or a later turn of the same conversation."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any

import orjson

from engines.base import Call

_OPENING = ("system", "developer")
_THREAD_WEIGHT = 131_072
"""Characters and items, about, above which a thread hashes: it must not hold up a flip."""
_ITEM_WEIGHT = 8


def cluster_of(call: Call) -> str:
    """16 hex digits that name the prompt or the conversation of a call.

    A conversation is known by how it opens: everything up to and including its first turn that is not an
    instruction, so that each later turn falls into the same cluster. Two users who open alike share one, and
    the second says nothing new.
    """
    return _digest(_named_by(call))


async def read_cluster(call: Call) -> str:
    """:func:`cluster_of`, off the event loop where there is much to hash."""
    named_by = _named_by(call)
    if _is_heavy(named_by):
        return await asyncio.to_thread(_digest, named_by)
    return _digest(named_by)


def _named_by(call: Call) -> list[Any]:
    said: Any = call.body.get("messages") or call.body.get("prompt") or call.body.get("input")
    if isinstance(said, list):
        said = _opening(said)
    return [call.model, call.body.get("system"), said]


def _digest(named_by: list[Any]) -> str:
    return blake2b(orjson.dumps(named_by), digest_size=8).hexdigest()


def _is_heavy(value: Any) -> bool:
    """Looks at no more than is needed to know."""
    weight, left = 0, [value]
    while left and weight <= _THREAD_WEIGHT:
        one = left.pop()
        if isinstance(one, str):
            weight += len(one)
        elif isinstance(one, list | dict):
            weight += _ITEM_WEIGHT * len(one)
            if weight <= _THREAD_WEIGHT:
                left += one if isinstance(one, list) else [*one, *one.values()]
    return weight > _THREAD_WEIGHT


def _opening(turns: list[Any]) -> list[Any]:
    """The first turns, up to the first that a user took; all of a list that is no list of turns."""
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            return turns
        if turn.get("role") not in _OPENING:
            return turns[: index + 1]
    return turns

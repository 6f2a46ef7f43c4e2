"""Which captures ask the same thing, and where that is found out: a large body must not hold up the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from engines.base import Call, CallKind
from proxy.mirror import cluster
from proxy.mirror.cluster import cluster_of, read_cluster

MANY = 200_000


def call(**body: Any) -> Call:
    return Call(kind=CallKind.CHAT, body={"model": "m", **body}, model="m")


def chat(*contents: Any) -> Call:
    return call(messages=[{"role": "user", "content": content} for content in contents])


@pytest.mark.parametrize(
    ("asked", "on_loop"),
    [
        (chat("hello"), True),
        (chat("hello", "x" * MANY), True),  # a later turn names nothing, so that it is not hashed
        (chat("x" * MANY), False),
        (chat([{"type": "text", "text": "x" * 50_000}] * 3), False),
        (call(prompt=[7] * MANY), False),
        (call(prompt="short", system="x" * MANY), False),
        (call(messages=[{"role": "user", "content": "hi", **{f"k{i}": i for i in range(MANY)}}]), False),
    ],
    ids=["small", "large later turn", "large turn", "large parts", "tokens", "large system", "many keys"],
)
def test_what_is_large_is_hashed_on_a_thread(
    asked: Call, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cluster_of(asked)
    threads: list[threading.Thread] = []
    hash_of = cluster.blake2b

    def noted(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return hash_of(*args, **options)

    monkeypatch.setattr(cluster, "blake2b", noted)

    async def main() -> tuple[str, threading.Thread]:
        return await read_cluster(asked), threading.current_thread()

    found, loop_thread = asyncio.run(main())
    assert found == expected
    assert [thread is loop_thread for thread in threads] == [on_loop]


def test_later_turns_are_of_one_conversation_and_other_openings_are_not() -> None:
    assert cluster_of(chat("hello", "and then?")) == cluster_of(chat("hello"))
    assert cluster_of(chat("hello")) != cluster_of(chat("good day"))

"""UUIDv7, fast."""

from __future__ import annotations

import uuid

from proxy.edge.ids import RequestIds


def test_every_id_is_a_uuid_version_7_of_its_millisecond_and_they_rise() -> None:
    now = [1_700_000_000.123]
    ids = RequestIds(lambda: now[0])
    made = []
    for step in range(3000):
        now[0] += 0.0001
        made.append((ids.new(), now[0]))
        value = uuid.UUID(made[-1][0])
        assert (value.version, value.variant) == (7, uuid.RFC_4122), step
        assert abs((value.int >> 80) - now[0] * 1000) < 2
    texts = [text for text, _ in made]
    assert texts == sorted(set(texts))


def test_more_ids_than_a_millisecond_has_room_for_still_rise() -> None:
    ids = RequestIds(lambda: 1_700_000_000.0)
    texts = [ids.new() for _ in range(20_000)]
    assert texts == sorted(set(texts))
    assert all(uuid.UUID(text).version == 7 for text in texts)


def test_a_clock_that_steps_back_does_not_repeat_ids() -> None:
    now = [1_700_000_000.0]
    ids = RequestIds(lambda: now[0])
    texts = [ids.new() for _ in range(10)]
    now[0] -= 3600.0
    texts += [ids.new() for _ in range(10)]
    assert texts == sorted(set(texts))


def test_two_workers_do_not_collide() -> None:
    first, second = RequestIds(lambda: 1.0), RequestIds(lambda: 1.0)
    assert not {first.new() for _ in range(5000)} & {second.new() for _ in range(5000)}

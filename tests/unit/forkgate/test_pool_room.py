"""Could a pool take everything back: by measured requests where given, else by KV caches; live work alone."""

from __future__ import annotations

from typing import Any

import pytest

from forkgate.config.pool_watch import PoolWatchSettings
from forkgate.judge.pool_room import EndpointSeen, in_the_way, room


def seen(running: int | None = 0, kv: float | None = 0.0, name: str = "a", **more: Any) -> EndpointSeen:
    waiting = 0 if running is not None else None
    return EndpointSeen(
        url=f"http://{name}", running=running, kv_cache_usage=kv, **{"waiting": waiting, **more}
    )


def why(old: list[EndpointSeen], new: list[EndpointSeen], **settings: Any) -> tuple[str, ...]:
    return in_the_way(PoolWatchSettings(**settings), old, new)


def test_an_idle_pool_as_large_as_the_candidates_takes_everything_back() -> None:
    assert why([seen(), seen(name="b")], [seen(9, 0.8), seen(9, 0.8)]) == ()
    assert room(PoolWatchSettings(), [seen()], [seen(9, 0.4)]) == (
        "90% of one KV cache is free, the candidate's live work holds 40%"
    )


def test_a_pool_that_shrank_is_short_of_room_for_what_the_candidate_carries() -> None:
    gone = seen(name="b", trouble="http://b: connection refused")
    assert why([seen(), gone], [seen(9, 0.8), seen(9, 0.8)]) == (
        "http://b: connection refused",
        "90% of one endpoint's KV cache is free in all, and the candidate's live work holds 160% of its own",
    )
    assert why([seen(), gone], [seen(1, 0.1)]) == ("http://b: connection refused",), "short is short"


def test_what_waits_and_what_is_full_is_in_the_way_whatever_the_candidate_carries() -> None:
    assert why([seen(40, 0.5, waiting=3)], [seen()]) == ("http://a has 3 requests waiting",)
    (full,) = why([seen(40, 0.95)], [seen()])
    assert full == "http://a uses 95% of its KV cache for live work, more than 90%"
    assert why([seen(40, 0.95)], [seen()], kv_cache_percent=97.0) == ()


def test_shadows_take_no_room_for_they_leave_when_live_work_comes_back() -> None:
    assert why([seen(10, 0.95, ours=8)], [seen(10, 0.9, ours=8)]) == ()
    assert why([seen(10, 0.95, ours=8)], [seen(10, 0.9)]) != ()


def test_shadows_that_wait_are_no_queue_and_hide_no_live_work() -> None:
    assert why([seen(8, 0.5, waiting=6, ours=6)], [seen()]) == ()
    assert why([seen(8, 0.5, waiting=6, ours=4)], [seen()]) == ("http://a has 2 requests waiting",)
    assert seen(8, 0.5, waiting=8, ours=8).live == 8, "they wait: all that runs is live"
    carried = seen(8, 0.8, name="b", waiting=8, ours=8)
    assert why([seen()], [carried], capacity_requests=7) == (
        "it has room for 7 more requests, and the candidate runs 8",
    )


@pytest.mark.parametrize(("running", "fits"), [(6, True), (7, False)])
def test_measured_requests_count_where_they_are_given(running: int, fits: bool) -> None:
    found = why([seen(2), seen(name="b")], [seen(running), seen(0)], capacity_requests=4)
    said = f"it has room for 6 more requests, and the candidate runs {running}"
    assert found == (() if fits else (said,))


def test_an_endpoint_that_is_gone_adds_no_room_and_one_over_its_measure_takes_none_away() -> None:
    gone = seen(name="b", trouble="gone")
    assert why([seen(9), gone], [seen(1)], capacity_requests=4) == (
        "gone",
        "it has room for 0 more requests, and the candidate runs 1",
    )


def test_what_nobody_tells_is_not_held_against_a_pool() -> None:
    mute = EndpointSeen(url="http://a")
    assert why([mute], [seen(50, 0.9)]) == ()
    assert why([seen()], [mute], capacity_requests=1) == ()
    assert room(PoolWatchSettings(), [mute], [mute]) == "its engines do not tell what they could carry"

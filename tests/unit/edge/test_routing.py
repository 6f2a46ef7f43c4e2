"""The table in force, the judge's grace, and which requests are drawn."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from policies.routes import MirrorRule, TenantName
from proxy.edge.health import Health
from proxy.edge.routing import Router
from proxy.edge.sampling import CompiledRule, captured_headers
from tests.support.edge import settings, table

ACME = TenantName("acme")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def router(clock: Clock, judge: str | None = "unix:/tmp/x", **changes: Any) -> Router:
    initial = table("http://home:1", "http://candidate:1", routes={"acme": "candidate"}, percent=50)
    return Router(settings(initial, judge=judge, judge_grace_s=30.0, judge_return_s=5.0, **changes), clock)


def later(routes: Router, clock: Clock, seconds: float) -> None:
    """Pass the time in sweeps, as the worker does."""
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        routes.tick(clock.now)


def pool_of(routes: Router, clock: Clock) -> str:
    return routes.route(ACME, clock.now).name


def test_unknown_tenants_go_home_and_canaries_to_their_pool() -> None:
    clock = Clock()
    routes = router(clock)
    assert pool_of(routes, clock) == "candidate"
    assert routes.route(TenantName("-"), clock.now).name == "home"


def test_a_table_that_is_not_newer_is_ignored() -> None:
    clock = Clock()
    routes = router(clock)
    routes(table("http://home:1", epoch=5))
    assert pool_of(routes, clock) == "home"
    for epoch in (5, 4, 1):
        routes(table("http://home:1", "http://candidate:1", epoch=epoch, routes={"acme": "candidate"}))
        assert pool_of(routes, clock) == "home"
        assert routes.table.epoch == 5


def test_a_pool_that_stays_keeps_its_endpoints_and_one_that_goes_is_retired() -> None:
    clock = Clock()
    routes = router(clock)
    home, candidate = routes.home, routes.route(ACME, clock.now)
    routes(table("http://home:1", "http://other:1", epoch=2, routes={"acme": "candidate"}))
    assert routes.home is home
    assert routes.route(ACME, clock.now) is not candidate
    assert candidate.endpoints[0].most_idle == 0


def test_without_a_judge_canaries_go_home_after_the_grace_and_not_before() -> None:
    clock = Clock()
    routes = router(clock)
    routes.judge_back()
    later(routes, clock, 100.0)
    assert pool_of(routes, clock) == "candidate"
    routes.judge_lost()
    later(routes, clock, 29.0)
    assert pool_of(routes, clock) == "candidate"
    later(routes, clock, 2.0)
    assert pool_of(routes, clock) == "home"
    assert routes.rules == []


def test_a_judge_that_never_came_is_a_judge_lost() -> None:
    clock = Clock()
    routes = router(clock)
    later(routes, clock, 31.0)
    assert pool_of(routes, clock) == "home"


def test_an_edge_without_a_judge_follows_its_table_for_ever() -> None:
    clock = Clock()
    routes = router(clock, judge=None)
    later(routes, clock, 1000.0)
    assert pool_of(routes, clock) == "candidate"


def test_canaries_return_only_after_the_judge_has_stood_a_while() -> None:
    clock = Clock()
    routes = router(clock)
    later(routes, clock, 31.0)
    routes.judge_back()
    later(routes, clock, 4.0)
    routes.judge_lost()
    later(routes, clock, 10.0)
    assert pool_of(routes, clock) == "home"
    routes.judge_back()
    later(routes, clock, 4.0)
    assert pool_of(routes, clock) == "home"
    later(routes, clock, 2.0)
    assert pool_of(routes, clock) == "candidate"
    assert len(routes.rules) == 1


def test_a_judge_that_flaps_within_its_grace_moves_nobody() -> None:
    clock = Clock()
    routes = router(clock)
    for _ in range(10):
        routes.judge_lost()
        later(routes, clock, 20.0)
        routes.judge_back()
        later(routes, clock, 1.0)
        assert pool_of(routes, clock) == "candidate"


def test_saying_lost_again_does_not_begin_the_grace_again() -> None:
    clock = Clock()
    routes = router(clock)
    for _ in range(31):
        routes.judge_lost()
        later(routes, clock, 1.0)
    assert pool_of(routes, clock) == "home"


def test_a_rollback_reaches_an_edge_in_grace_and_holds_after_it() -> None:
    clock = Clock()
    routes = router(clock)
    later(routes, clock, 31.0)
    routes(table("http://home:1", "http://candidate:1", epoch=2))
    routes.judge_back()
    later(routes, clock, 10.0)
    assert pool_of(routes, clock) == "home"


def test_no_fail_back_into_a_pool_with_no_healthy_endpoint() -> None:
    clock = Clock()
    routes = router(clock)
    later(routes, clock, 31.0)
    assert pool_of(routes, clock) == "home"
    routes.home.endpoints[0].health.failed(clock.now)
    assert pool_of(routes, clock) == "candidate"
    routes.route(ACME, clock.now).endpoints[0].health.failed(clock.now)
    assert pool_of(routes, clock) == "home"


def test_an_ejection_doubles_up_to_a_minute_and_a_success_forgets_it() -> None:
    health = Health(5.0)
    now = 0.0
    lasted = []
    for _ in range(6):
        health.failed(now)
        lasted.append(health.ejected_until - now)
        health.failed(now)  # another attempt of the same time
        assert health.ejected_until - now == lasted[-1]
        now = health.ejected_until
    assert lasted == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    health.answered()
    assert health.ejected_until == 0.0
    health.failed(now)
    assert health.ejected_until - now == 5.0


# -- sampling --------------------------------------------------------------------------------------


def rule(percent: float, rollout: str = "a100-to-h100", tenants: tuple[str, ...] = ()) -> CompiledRule:
    return CompiledRule(MirrorRule(rollout=rollout, percent=percent, tenants=tenants))


def test_the_draw_is_the_published_formula() -> None:
    compiled = rule(10.0)
    for number in range(2000):
        request_id = b"r-%d" % number
        digest = hashlib.blake2b(request_id, key=b"a100-to-h100", digest_size=8).digest()
        assert compiled.draws(request_id, ACME) == (int.from_bytes(digest, "big") / 2**64 < 0.1)


@pytest.mark.parametrize(
    ("percent", "least", "most"), [(0.0, 0, 0), (100.0, 20_000, 20_000), (10.0, 1_790, 2_210)]
)
def test_the_share_drawn_is_the_percentage(percent: float, least: int, most: int) -> None:
    # 20,000 draws at 10 % have a standard deviation of 42: the bounds are 5 of those away.
    compiled = rule(percent)
    drawn = sum(compiled.draws(b"request-%d" % number, ACME) for number in range(20_000))
    assert least <= drawn <= most


def test_rollouts_draw_independently() -> None:
    first, second = rule(50.0, "one"), rule(50.0, "two")
    both = sum(
        first.draws(b"%d" % number, ACME) and second.draws(b"%d" % number, ACME) for number in range(4000)
    )
    assert 860 <= both <= 1140  # a quarter, within 5 standard deviations of 27


def test_only_listed_tenants_are_drawn() -> None:
    compiled = rule(100.0, tenants=("acme",))
    assert compiled.draws(b"r", ACME)
    assert not compiled.draws(b"r", TenantName("globex"))


def test_captured_headers_are_an_allow_list() -> None:
    fields = [
        (b"Content-Type", b"application/json"),
        (b"OpenAI-Beta", b"x"),
        (b"Anthropic-Version", b"2023-06-01"),
        (b"Authorization", b"secret"),
        (b"Cookie", b"secret"),
        (b"X-Api-Key", b"secret"),
        (b"api-key", b"secret"),
        (b"Proxy-Authorization", b"secret"),
        (b"X-Anything", b"secret"),
    ]
    assert captured_headers(fields) == (
        (b"content-type", b"application/json"),
        (b"openai-beta", b"x"),
        (b"anthropic-version", b"2023-06-01"),
    )

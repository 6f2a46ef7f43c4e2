"""The verdict that other tools' gates read: nothing is a pass without evidence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from forkgate.admin import AdminServer
from forkgate.admin.verdict import verdict_of
from tests.unit.forkgate.test_admin import NotedJudge


def gate(answer: str, name: str = "g", n: int = 10) -> dict[str, Any]:
    return {"gate": name, "answer": answer, "value": 0.1, "limit": 0.5, "n": n, "reason": f"{name} {answer}"}


def rollout(*answers: str, **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": "r",
        "state": "canary",
        "held": None,
        "paused": None,
        "latched": None,
        "comparisons": 10,
        "verdicts": [gate(answer, f"g{number}") for number, answer in enumerate(answers)],
    }
    return {**plain, **changes}


PASSING = ("pass", "pass")


@pytest.mark.parametrize(
    ("found", "verdict", "number", "reason"),
    [
        (rollout(*PASSING), "pass", 1, "all 2 gates pass"),
        (rollout(*PASSING, state="promoted"), "pass", 1, "all 2 gates pass"),
        (rollout("pass", "inconclusive"), "inconclusive", 0, "g1: g1 inconclusive"),
        (rollout("inconclusive", "fail"), "fail", -1, "g1: g1 fail"),
        (rollout("error", "pass"), "error", -2, "g0: g0 error"),
        (rollout("error", "fail"), "fail", -1, "g1: g1 fail"),
        # No evidence is not a pass.
        (rollout(), "inconclusive", 0, "nothing has been compared yet"),
        (rollout(*PASSING, comparisons=0), "inconclusive", 0, "nothing has been compared yet"),
        (rollout(*PASSING, state="pending"), "inconclusive", 0, "in pending, nothing has been compared"),
        (
            rollout(*PASSING, state="self_check"),
            "inconclusive",
            0,
            "in self_check, nothing has been compared",
        ),
        # Nor is what nobody may go on from.
        (rollout(*PASSING, held="look"), "inconclusive", 0, "held: look"),
        (rollout(*PASSING, paused={"who": "ana"}), "inconclusive", 0, "paused by a person"),
        # A rollback stays one, whatever its gates say since.
        (
            rollout(*PASSING, state="rolled_back", latched={"reason": "forked"}),
            "fail",
            -1,
            "rolled back: forked",
        ),
        (rollout(state="aborted"), "fail", -1, "aborted by a person"),
        (rollout("fail", held="look"), "fail", -1, "g0: g0 fail"),
    ],
)
def test_verdict_in_one_word_and_one_number(
    found: dict[str, Any], verdict: str, number: int, reason: str
) -> None:
    told = verdict_of(found)
    assert (told.verdict, told.number, told.reason) == (verdict, number, reason)
    assert sum(told.counts.values()) == len(told.gates)


def test_infinite_figures_are_no_figures() -> None:
    (one,) = verdict_of(rollout("pass") | {"verdicts": [{**gate("pass"), "value": "Infinity"}]}).gates
    assert one.value is None


@pytest.mark.parametrize(
    ("answers", "expect", "status"),
    [
        (PASSING, None, 200),
        (PASSING, "pass", 200),
        (PASSING, "not_fail", 200),
        (PASSING, "fail", 409),
        (("inconclusive",), None, 409),
        (("inconclusive",), "not_fail", 200),
        (("inconclusive",), "fail", 409),
        (("error",), "pass", 409),
        (("error",), "not_fail", 409),
        (("error",), "fail", 409),
        (("fail",), "pass", 409),
        (("fail",), "not_fail", 409),
        (("fail",), "fail", 200),
        ((), None, 409),
        (PASSING, "maybe", 400),
    ],
)
def test_flagger_is_answered_by_status(
    tmp_path: Path, answers: tuple[str, ...], expect: str | None, status: int
) -> None:
    async def main() -> None:
        judge = NotedJudge(tmp_path / "evidence.db")
        judge.rollout = lambda name: rollout(*answers)  # type: ignore[method-assign]
        server = AdminServer(tmp_path / "admin.sock", judge)
        await server.start()
        connector = aiohttp.UnixConnector(str(tmp_path / "admin.sock"))
        query = "" if expect is None else f"?expect={expect}"
        body = {"name": "engine", "namespace": "prod", "phase": "Progressing", "metadata": {"any": "thing"}}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"http://judge/v1/rollouts/r/verdict{query}", json=body) as response,
        ):
            assert response.status == status
            told = await response.json()
        await server.close()
        assert ("verdict" in told) is (status == 200)

    asyncio.run(main())

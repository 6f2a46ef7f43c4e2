"""Candidates that refuse, stall, trickle, never end, lie, break off: no client notices."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.support.saboteur import StubProcess
from tests.support.sidecar import eventually_async
from tests.support.stack import Connection, Stack, request_bytes, stack, stubs
from tests.support.waiting import LIMIT_S

EACH = 3
"""Live requests under each lie."""
SHADOW = {"arm_timeout_s": 1.0, "in_flight": 16}
GROWTH_BYTES = 24 << 20
"""Beyond what a process holds after its first requests, with a candidate that never ends in what follows."""

BROKEN = (
    "refuses to connect",
    "answers 500",
    "refuses all",
    "stalls",
    "garbage",
    "half way",
    "endless",
    "fails at token 2",
    "never finishes",
    "nan at token 2",
    "drops ids",
    "drops logprobs",
    "echoes another prompt",
)
"""Each an arm that did not do as asked: nothing is compared with it."""
FAILED = ("failed", "timed_out", "refused", "invalid")


def test_no_lie_of_a_candidate_reaches_a_client_or_counts_as_evidence(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            stack(tmp_path, workers=1, canary=(), shadow=SHADOW) as (one, _, new),
        ):
            host, port = one.url.removeprefix("http://").rsplit(":", 1)
            client = Connection(host, int(port))
            seen: dict[str, list[bytes]] = {"healthy": await _ask_all(client)}
            asked = EACH
            await one.quiet(captured=asked)
            pairs = await _gate(one)
            assert pairs["n"] == EACH
            before = _memory(one)
            for lie in (*BROKEN, "trickles"):
                seen[lie] = await _lied_to(one, client, new, lie)
                asked += EACH
                ledger = await one.quiet(captured=asked)
                assert ledger["compared"] + sum(ledger["dropped"].values()) == asked, (lie, ledger)
                gate = await _gate(one)
                assert (gate["answer"], gate["n"]) == ("inconclusive", EACH), (lie, gate)
            grown = {name: now - before[name] for name, now in _memory(one).items()}
            assert max(grown.values()) < GROWTH_BYTES, grown
            await _stored_as_what_they_were(one)

            # A healthy one again: compared again, and no verdict is left of what was before.
            await new.set(pause_s=0.0)
            seen["healthy again"] = await _ask_all(client)
            asked += EACH
            await one.quiet(captured=asked)
            gate = await _gate(one)
            # Compared like the first time; the same prompts again are no new evidence.
            assert (gate["answer"], gate["n"]) == ("inconclusive", EACH)
            assert (await one.admin("/v1/rollouts/old-to-new"))["compared"] == 2 * EACH

            # Other tokens are a fork. What follows has no shadow: the same bytes to client and engine.
            await new.set("forks at token 2")
            seen["forks"] = await _ask_all(client)
            await one.until("the rollback", state="rolled_back")
            await one.obeyed()
            asked = (await one.quiet())["captured"]
            seen["without a shadow"] = await _ask_all(client)
            assert (await one.quiet())["captured"] == asked
            assert len({tuple(answers) for answers in seen.values()}) == 1
            client.close()

    asyncio.run(main())


async def _lied_to(one: Stack, client: Connection, new: StubProcess, lie: str) -> list[bytes]:
    if lie == "refuses to connect":
        await new.kill()
    elif lie == "trickles":
        await new.set(pause_s=0.7)
    else:
        await new.set(lie)
    answers = await _ask_all(client)
    if lie in ("stalls", "trickles", "endless"):
        # The clients have their answers while the shadow still waits for its own.
        assert (await one.admin("/v1/ledger"))["compared"] <= len(answers) * (len(BROKEN) + 1)
    if lie == "refuses to connect":
        await one.quiet()
        await new.start()
    return answers


async def _ask_all(client: Connection) -> list[bytes]:
    """Heads and bodies that a client gets, with what the engine saw of each request; the date left out."""
    answers = []
    for number in range(EACH):
        request = request_bytes("globex", f"question {number}", request_id=f"same-{number}")
        answer = await client.ask("globex", request)
        assert answer.whole, answer
        head = b"\r\n".join(
            line for line in client.raw_head.split(b"\r\n") if not line.lower().startswith(b"date:")
        )
        assert b"x-seen:" in head.lower()
        answers.append(head + answer.body)
    return answers


async def _gate(one: Stack) -> dict[str, Any]:
    rollout = await one.admin("/v1/rollouts/old-to-new")
    assert rollout["state"] == "shadow", rollout
    assert rollout["forks"] == 0, rollout
    (verdict,) = rollout["verdicts"]
    return dict(verdict)


def _memory(one: Stack) -> dict[str, int]:
    return {child: psutil.Process(one.pids(child)[-1]).memory_info().rss for child in ("judge", "edge 0")}


async def _stored_as_what_they_were(one: Stack) -> None:
    """Each pair that a broken arm made is kept for what it is; people are told of no equality there."""
    found = (await one.admin("/v1/evidence?limit=100"))["pairs"]
    assert len(found) >= EACH * len(BROKEN)
    for pair in found[:-EACH]:
        assert pair["set_aside"] or pair["right_outcome"] in FAILED, pair
        assert "equal" not in pair["summary"], pair
    _, text, _ = await one.cli("evidence", "show", found[0]["capture_id"])
    assert "not compared to an end" in text


def test_candidate_that_was_not_there_at_the_start_is_noticed_when_it_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stubs("old", "new") as (old, new):
            one = Stack(tmp_path, old.url, new.url, workers=1, shadow={"queue_age_s": 2.0})
            await new.kill()
            try:
                one.spawn()
                await one.until_edges()
                host, port = one.url.removeprefix("http://").rsplit(":", 1)
                client = Connection(host, int(port))

                async def in_words() -> bool:
                    with contextlib.suppress(aiohttp.ClientError, OSError):
                        return any("pool new" in trouble for trouble in (await one.status())["troubles"])
                    return False

                await eventually_async(in_words, "status says that the candidate does not answer")
                await one.obeyed()
                before = (await one.quiet())["captured"]
                for number in range(EACH):
                    answer = await client.ask("acme", request_bytes("acme", f"early {number}"))
                    assert answer.whole, answer
                    assert answer.engine == "old"
                ledger = await one.quiet(captured=before + EACH)
                assert await _equal_pairs(one) == 0, ledger
                await new.start()
                await one.until_judged()

                async def at_the_candidate() -> bool:
                    answer = await client.ask("acme", request_bytes("acme", "there now"))
                    assert answer.whole, answer
                    return answer.engine == "new"

                await eventually_async(at_the_candidate, "acme at the candidate")
                await eventually_async(lambda: _equal(one), "a pair")
                client.close()
            finally:
                await one.close()

    asyncio.run(main())


async def _equal(one: Stack) -> bool:
    return await _equal_pairs(one) > 0


async def _equal_pairs(one: Stack) -> int:
    (verdict,) = (await one.admin("/v1/rollouts/old-to-new"))["verdicts"]
    return int(verdict["n"])

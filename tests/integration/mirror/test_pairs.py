"""What becomes of one captured request, with engines that behave and engines that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from comparator.compare import align_exchanges, compare
from comparator.pair import Pair, SetAside
from comparator.records import Outcome
from engines.base import (
    CannotEncode,
    Capability,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Finish,
    Prompt,
    Steps,
)
from proxy.mirror import Sources, derive_seed
from proxy.mirror.arm import LOWEST_PRIORITY
from proxy.mirror.seeds import is_token_only
from tests.support import virtual
from tests.support.engines import (
    BROKEN,
    EVERYTHING,
    REFUSED,
    FakeEndpoint,
    FakeEngine,
    bloated,
    endless,
    fake_step,
    other_prompt,
    probe,
    raising,
    stalled,
    trickling,
    unfinished,
)
from tests.support.mirror import rig

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
DOWN = EngineUnavailable("http://fake", "connection refused")


def run(main: Any) -> None:
    virtual.run(main())


def recomputed(pair: Pair) -> Pair:
    """The same pair from its exchanges alone, as a reader of stored evidence makes it."""
    return compare(pair.left, pair.right)


def test_both_arms_get_the_same_request_and_a_salt_of_their_own() -> None:
    async def main() -> None:
        async with rig() as made:
            pair = await made.pair(request_id="r-1", fields={"max_tokens": 500, "temperature": 0.7})
            (left,), (right,) = made.baseline[0].engine.prompts, made.candidate[0].engine.prompts
            assert left.token_ids == right.token_ids == tuple(b"hello")
            assert left.sampling == right.sampling == pair.left.sampling == pair.right.sampling
            assert left.sampling.seed == derive_seed("s", "r-1")
            assert (left.sampling.max_tokens, left.sampling.logprobs) == (256, 5)
            assert left.sampling.temperature == 0.7
            assert left.cache_salt != right.cache_salt
            assert pair.left.facts["cache_salt"].value == left.cache_salt
            assert left.priority == right.priority == LOWEST_PRIORITY
            assert (left.exchange_id, right.exchange_id) == ("id-1/baseline/0", "id-1/candidate/0")

    run(main)


def test_equal_streams_make_a_pair_without_fork() -> None:
    async def main() -> None:
        async with rig() as made:
            pair = await made.pair()
            assert pair.fork is None
            assert pair.valid
            assert pair.left.outcome is pair.right.outcome is Outcome.COMPLETED
            assert pair.left.token_ids == pair.right.token_ids
            assert (pair.left.pool, pair.right.pool) == ("old", "new")
            assert (pair.left.engine, pair.left.endpoint) == ("fake 1.0", "http://fake")
            assert pair.left.timing.tokens == 6
            assert pair.left.timing.ttft_s == 0.01
            assert pair.max_error_nats == 0.0
            assert made.sink.forks == []

    run(main)


@pytest.mark.parametrize(("left_chunk", "right_chunk"), [(1, 1), (4, 1), (1, 4), (6, 6)])
def test_a_fork_is_told_before_the_pair_and_once(left_chunk: int, right_chunk: int) -> None:
    async def main() -> None:
        async with rig(FakeEngine(chunk=left_chunk), FakeEngine(fork_at=3, chunk=right_chunk)) as made:
            pair = await made.pair()
            assert pair.fork is not None
            assert pair.fork.fork_index == 3
            assert pair == recomputed(pair)
            (seen,) = made.sink.forks
            assert seen.fork == pair.fork
            assert (seen.capture_id, seen.rollout, seen.tenant) == ("id-1", "old-to-new", "acme")
            assert made.sink.log == ["fork id-1", "pair id-1"]
            assert len(pair.left.steps) == len(pair.right.steps) == 6  # the rest is still read

    run(main)


def test_a_fork_is_told_while_both_arms_still_run() -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def slow(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
            for index in range(3):
                yield Steps((fake_step(prompt, index, variant=index // 2),))
                await asyncio.sleep(0)
            await go_on.wait()
            yield Finish(finish_reason="stop")

        baseline = FakeEngine(length=200)
        async with rig(baseline, FakeEngine(script=slow)) as made:
            made.submit()
            while not made.sink.forks:
                await asyncio.sleep(0)
            assert made.sink.forks[0].fork.fork_index == 2
            assert made.candidate[0].engine.active == 1
            assert made.sink.pairs == {}
            go_on.set()
            await made.settled()

    run(main)


def test_a_shorter_answer_is_a_fork_at_its_end() -> None:
    async def main() -> None:
        async with rig(FakeEngine(length=6), FakeEngine(length=4)) as made:
            pair = await made.pair()
            assert pair.fork is not None
            assert (pair.fork.fork_index, pair.fork.proper_prefix) == (4, True)
            assert pair == recomputed(pair)
            assert len(made.sink.forks) == 1

    run(main)


def test_limits_of_the_shadow_bound_what_the_client_asked_for() -> None:
    async def main() -> None:
        async with rig(FakeEngine(length=50), FakeEngine(length=50), max_tokens=20) as made:
            pair = await made.pair(fields={"max_tokens": 40, "min_tokens": 30})
            assert (pair.left.sampling.max_tokens, pair.left.sampling.min_tokens) == (20, 20)
            assert pair.left.finish_reason == "length"
            short = await made.pair(fields={"max_tokens": 3})
            assert short.left.sampling.max_tokens == 3
            reason, detail = await made.drop(fields={"max_tokens": 0})
            assert (reason, detail) == ("unsupported", "max_tokens 0 leaves nothing to compare")

    run(main)


# -- encoding -----------------------------------------------------------------------------------------


def test_another_tokenizer_is_set_aside_without_a_token_generated() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(encode_shift=1)) as made:
            pair = await made.pair()
            assert pair.set_aside is SetAside.ENCODING_MISMATCH
            assert pair.fork is None
            assert pair.left.prompt_token_ids == tuple(b"hello")
            assert pair.right.prompt_token_ids == tuple(byte + 1 for byte in b"hello")
            assert pair.left.facts["template_sha256"] != pair.right.facts["template_sha256"]
            assert made.baseline[0].engine.prompts == made.candidate[0].engine.prompts == []
            assert pair == recomputed(pair)

    run(main)


def test_other_defaults_of_the_candidate_are_noted_and_not_used() -> None:
    async def main() -> None:
        async with rig(FakeEngine(temperature=0.6), FakeEngine(temperature=1.0)) as made:
            pair = await made.pair()
            assert pair.left.sampling.temperature == pair.right.sampling.temperature == 0.6
            assert pair.right.facts["own_defaults_differ"].value == {"temperature": [0.6, 1.0]}
            assert pair.valid

    run(main)


def test_a_candidate_that_cannot_encode_still_runs_the_baselines_tokens() -> None:
    async def main() -> None:
        lacks = FakeEndpoint(FakeEngine(encode_error=BROKEN), probe(EVERYTHING - {Capability.ENCODE}))
        async with rig(FakeEngine(), lacks) as made:
            pair = await made.pair()
            assert pair.valid
            assert "the test says so" in str(pair.right.facts["own_encoding"].unknown)
            assert lacks.engine.calls == []

    run(main)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(REFUSED, Outcome.REFUSED), (DOWN, Outcome.FAILED), (BROKEN, Outcome.INVALID)],
)
def test_a_candidate_that_fails_the_clients_call_is_charged_with_it(error: Any, outcome: Outcome) -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(encode_error=error)) as made:
            pair = await made.pair()
            assert (pair.left.outcome, pair.right.outcome) == (Outcome.COMPLETED, outcome)
            assert str(error) in str(pair.right.error)
            assert made.candidate[0].engine.prompts == []
            assert pair.fork is None
            assert pair == recomputed(pair)
            expected = SetAside.INVALID_ANSWER if outcome is Outcome.INVALID else None
            assert pair.set_aside is expected

    run(main)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DOWN, "baseline_unavailable"),
        (EngineTimeout("http://fake", "no answer"), "baseline_unavailable"),
        (BROKEN, "baseline_unavailable"),
        (EngineRefused("http://fake", "prompt too long", 400), "unsupported"),
        (CannotEncode("http://fake", "n: several choices", goes_as_itself=False), "unsupported"),
        (KeyError("a bug in an adapter"), "baseline_unavailable"),
    ],
)
def test_a_baseline_that_cannot_encode_ends_the_capture(error: Any, reason: str) -> None:
    async def main() -> None:
        async with rig(FakeEngine(encode_error=error), FakeEngine(encode_error=DOWN)) as made:
            told, detail = await made.drop()
            assert told == reason
            assert str(error) in detail

    run(main)


def test_a_request_without_token_form_goes_as_itself() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(fork_at=2)) as made:
            pair = await made.pair(fields={"tools": [{"type": "function"}], "max_tokens": 20, "top_p": 0.5})
            (left,), (right,) = made.baseline[0].engine.prompts, made.candidate[0].engine.prompts
            assert left.call is not None
            assert left.call == right.call
            assert left.call.body["tools"] == [{"type": "function"}]
            assert (left.token_ids, left.sampling.seed) == ((), derive_seed("s", "request-1"))
            assert (left.sampling.max_tokens, left.sampling.top_p) == (20, 0.5)
            assert not pair.left.as_tokens
            assert pair.left.prompt_token_ids == pair.right.prompt_token_ids == (1, 2, 3)
            assert "as itself" in str(pair.left.facts["sampling_defaults"].unknown)
            assert pair.fork is not None
            assert pair.fork.fork_index == 2
            assert pair == recomputed(pair)
            # Whether the prompts were alike is known only now: nothing was told before.
            assert made.sink.forks == []

    run(main)


def test_an_echo_of_one_arm_alone_proves_nothing() -> None:
    async def silent(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        yield Steps((fake_step(prompt, 0),))
        yield Finish(finish_reason="stop")

    async def main() -> None:
        async with rig(FakeEngine(length=1), FakeEngine(script=silent)) as made:
            pair = await made.pair(fields={"tools": [{"type": "function"}]})
            assert pair.left.prompt_token_ids == pair.right.prompt_token_ids == ()
            assert "only one arm" in str(pair.left.facts["prompt_token_ids"].unknown)
            assert pair.valid

    run(main)


def test_without_seeds_only_greedy_requests_are_compared() -> None:
    async def main() -> None:
        unseeded = FakeEndpoint(FakeEngine(), probe(EVERYTHING - {Capability.SEED}))
        async with rig(FakeEngine(), unseeded) as made:
            reason, detail = await made.drop(fields={"temperature": 0.9})
            assert reason == "unsupported"
            assert "honours no seed, and at temperature 0.9" in detail
            assert (await made.pair(fields={"temperature": 0})).valid

    run(main)


@pytest.mark.parametrize("lacking", [Capability.TOKEN_IN, Capability.TOKEN_OUT])
def test_an_engine_without_token_ids_is_not_compared(lacking: Capability) -> None:
    async def main() -> None:
        blind = FakeEndpoint(FakeEngine("http://blind"), probe(EVERYTHING - {lacking}))
        async with rig(FakeEngine(), blind) as made:
            reason, detail = await made.drop()
            assert reason == "unsupported"
            assert detail.startswith("http://blind ")
            assert "the test says so" in detail

    run(main)


def test_logprobs_are_asked_for_as_deep_as_both_engines_allow() -> None:
    async def main() -> None:
        shallow = FakeEndpoint(FakeEngine(), probe(max_logprobs=3))
        async with rig(FakeEngine(), shallow, logprobs=20) as made:
            pair = await made.pair()
            assert pair.left.sampling.logprobs == pair.right.sampling.logprobs == 3
            assert pair.left.facts["logprobs_depth"].value == 3
        none = FakeEndpoint(FakeEngine(), probe(EVERYTHING - {Capability.LOGPROBS}))
        async with rig(none, FakeEngine()) as made:
            assert (await made.pair()).right.sampling.logprobs == 0

    run(main)


# -- a candidate that misbehaves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "outcome", "tokens", "error"),
    [
        (raising(DOWN), Outcome.FAILED, 0, "connection refused"),
        (raising(DOWN, after=3), Outcome.FAILED, 3, "connection refused"),
        (raising(REFUSED), Outcome.REFUSED, 0, "not that"),
        (raising(EngineTimeout("http://fake", "no next chunk")), Outcome.TIMED_OUT, 0, "no next chunk"),
        (raising(BROKEN, after=2), Outcome.INVALID, 2, "token_ids are missing"),
        (raising(ZeroDivisionError("oops"), after=1), Outcome.INVALID, 1, "ZeroDivisionError: oops"),
        (endless, Outcome.INVALID, 32, "more than the 32 tokens"),
        (unfinished, Outcome.INVALID, 1, "without a finish"),
        (other_prompt, Outcome.INVALID, 1, "it ran another prompt"),
    ],
)
def test_a_failing_candidate_is_classified_and_bounded(
    script: Any, outcome: Outcome, tokens: int, error: str
) -> None:
    async def main() -> None:
        async with rig(FakeEngine(length=32), FakeEngine(script=script)) as made:
            pair = await made.pair()
            assert (pair.left.outcome, pair.right.outcome) == (Outcome.COMPLETED, outcome)
            assert len(pair.right.steps) == tokens
            assert error in str(pair.right.error)
            assert pair.fork is None  # a stream that broke off has no end to compare
            assert pair == recomputed(pair)
            assert made.sink.forks == []

    run(main)


@pytest.mark.parametrize(("script", "tokens"), [(stalled, 1), (trickling, 0)])
def test_a_candidate_that_never_ends_costs_no_more_than_its_time(script: Any, tokens: int) -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(script=script), arm_timeout_s=0.2) as made:
            pair = await made.pair()
            assert pair.left.outcome is Outcome.COMPLETED
            assert pair.right.outcome is Outcome.TIMED_OUT
            assert len(pair.right.steps) == tokens
            assert "not done after 0.2 s" in str(pair.right.error)
            assert pair.valid  # that is evidence about the candidate
            assert pair == recomputed(pair)

    run(main)


def test_a_candidate_that_sends_megabytes_is_stopped() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(script=bloated), arm_bytes=3 * 2**20) as made:
            pair = await made.pair()
            assert pair.right.outcome is Outcome.INVALID
            assert "more than 3145728 bytes" in str(pair.right.error)
            assert len(pair.right.steps) == 2

    run(main)


# -- a baseline that misbehaves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (raising(DOWN), "baseline_unavailable"),
        (raising(BROKEN), "baseline_unavailable"),
        (raising(REFUSED), "unsupported"),
        (trickling, "baseline_unavailable"),
    ],
)
def test_a_baseline_without_a_token_ends_the_capture_and_stops_the_candidate(
    script: Any, reason: str
) -> None:
    async def main() -> None:
        async with rig(FakeEngine(script=script), FakeEngine(script=stalled), arm_timeout_s=0.2) as made:
            told, _ = await made.drop()
            assert told == reason
            assert made.sink.forks == []

    run(main)


def test_a_baseline_that_breaks_off_sets_the_pair_aside() -> None:
    async def main() -> None:
        async with rig(FakeEngine(script=raising(DOWN, after=2)), FakeEngine(script=stalled)) as made:
            pair = await made.pair()
            assert pair.set_aside is SetAside.BASELINE_FAILED
            assert pair.left.outcome is Outcome.FAILED
            assert pair.right.outcome is Outcome.ABORTED
            assert "nothing to compare with" in str(pair.right.error)
            assert pair == recomputed(pair)

    run(main)


def test_a_fork_stands_though_the_baseline_broke_off_after_it() -> None:
    async def main() -> None:
        baseline = FakeEngine(script=raising(DOWN, after=3))
        async with rig(baseline, FakeEngine(fork_at=1)) as made:
            pair = await made.pair()
            assert pair.valid
            assert pair.fork is not None
            assert pair.fork.fork_index == 1

    run(main)


# -- who answered -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [DIGEST, OTHER, None])
def test_a_pair_is_evidence_only_if_the_declared_environment_answered(answered: str | None) -> None:
    async def main() -> None:
        known = FakeEndpoint(FakeEngine(digest=answered, fork_at=1), probe(environment_digest=DIGEST))
        baseline = FakeEndpoint(FakeEngine(digest=DIGEST), probe(environment_digest=DIGEST))
        async with rig(baseline, known, declared=(DIGEST, DIGEST)) as made:
            pair = await made.pair()
            assert pair.fork is not None
            if answered == OTHER:
                assert pair.set_aside is SetAside.DIGEST_MISMATCH
            else:  # an answer that is silent rests on what the probe proved
                assert pair.valid
                assert pair.right.environment_digest.value == DIGEST
            assert len(made.sink.forks) == 1  # the probe had proved it: told at once

    run(main)


def test_a_fork_of_an_environment_not_yet_proved_waits_for_the_proof() -> None:
    async def main() -> None:
        proved_late = FakeEndpoint(FakeEngine(digest=DIGEST, fork_at=1), probe())
        async with rig(FakeEngine(), proved_late, declared=(None, DIGEST)) as made:
            pair = await made.pair()
            assert made.sink.forks == []
            assert pair.valid
            assert pair.fork is not None
        never = FakeEndpoint(FakeEngine(fork_at=1), probe())
        async with rig(FakeEngine(), never, declared=(None, DIGEST)) as made:
            pair = await made.pair()
            assert made.sink.forks == []
            assert pair.set_aside is SetAside.DIGEST_MISMATCH

    run(main)


# -- token-only ---------------------------------------------------------------------------------------


def test_token_only_arms_are_cut_soon_after_the_fork_and_others_are_not() -> None:
    async def main() -> None:
        async with rig(
            FakeEngine(length=200),
            FakeEngine(length=200, fork_at=10),
            token_only_percent=50.0,
            token_only_tail_tokens=4,
        ) as made:
            made.submit(40, fields={"max_tokens": 100})
            await made.settled()
            cut = 0
            for pair in made.sink.pairs.values():
                drawn = is_token_only("old-to-new", pair.left.request_id, 50.0)
                assert pair.left.token_only is pair.right.token_only is drawn
                assert pair.fork is not None
                assert pair.fork.fork_index == 10
                assert pair == recomputed(pair)
                if not drawn:
                    assert pair.left.outcome is pair.right.outcome is Outcome.COMPLETED
                    continue
                cut += 1
                assert pair.left.outcome is pair.right.outcome is Outcome.CUT
                assert pair.valid
                for exchange in (pair.left, pair.right):
                    assert 15 <= len(exchange.steps) <= 16  # 11 up to the fork, 4 after, one under way
            assert 8 < cut < 32

    run(main)


def test_a_token_only_pair_without_fork_runs_to_its_end() -> None:
    async def main() -> None:
        async with rig(token_only_percent=100.0) as made:
            pair = await made.pair()
            assert pair.left.token_only
            assert pair.left.outcome is Outcome.COMPLETED

    run(main)


# -- evidence -----------------------------------------------------------------------------------------


def test_every_field_of_a_request_record_is_known_or_says_why_not() -> None:
    async def main() -> None:
        told = FakeEndpoint(FakeEngine(), probe(attention_mask="causal", batch_size=1))
        async with rig(told, FakeEngine()) as made:
            pair = await made.pair()
            assert pair.left.facts["attention_mask"].value == "causal"
            assert pair.left.facts["template_sha256"].value
            for exchange in (pair.left, pair.right):
                for name in (
                    "attention_mask",
                    "padding",
                    "adapter",
                    "processor_order",
                    "batch_size",
                    "batch_place",
                    "system_fingerprint",
                    "logprobs_mode",
                    "cache_salt",
                    "logprobs_depth",
                ):
                    fact = exchange.facts[name]
                    assert fact.value is not None or fact.unknown
            assert pair.right.environment_digest.unknown
            raw = msgspec.json.encode(pair)
            assert msgspec.json.decode(raw, type=Pair) == pair

    run(main)


def test_times_come_from_the_clocks_that_were_given() -> None:
    async def main() -> None:
        ticks = iter(range(10_000))
        sources = Sources(monotonic=lambda: float(next(ticks)), unix=lambda: 1_234.5, salt=lambda: "salt")
        async with rig(sources=sources, queue_age_s=86_400) as made:
            pair = await made.pair()
            assert pair.left.timing.started_unix_s == 1_234.5
            assert pair.left.timing.total_s >= 1.0
            assert pair.left.facts["cache_salt"].value == "salt"
            assert align_exchanges(pair.left, pair.right).fork is None

    run(main)

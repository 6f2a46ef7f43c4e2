"""Both checks between engines made of Python: those that fit, and each way in which they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from comparator.floor import Floor
from comparator.records import Digest, Fact, Step
from engines.base import (
    Call,
    CannotEncode,
    Encoding,
    EngineRefused,
    EngineUnavailable,
    Finish,
    Load,
    Prompt,
    Steps,
)
from forkgate.checks import PROMPTS, CheckReport, dominates, quick_check, self_check
from forkgate.checks.ask import LULL_S, LULL_STEP_S
from forkgate.cli.check import lines_of
from forkgate.config.first_checks import CheckSettings
from policies.policy import Level
from policies.verdict import Answer
from proxy.mirror import ShadowPool
from tests.support.engines import BROKEN, REFUSED, FakeEndpoint, FakeEngine, fake_step, probe, raising

SETTINGS = CheckSettings(self_runs=3, prompts=4, tokens=5)
RESET = EngineUnavailable("http://new", "reset")
SILENT = "new does not answer what the baseline answers: "
STRICT = (Level.TOKEN, Level.ENVIRONMENT, Level.ARTIFACT)


def pool(*engines: FakeEngine | FakeEndpoint, name: str = "old", digest: str | None = None) -> ShadowPool:
    return ShadowPool(
        name=name,
        endpoints=tuple(one if isinstance(one, FakeEndpoint) else FakeEndpoint(one) for one in engines),
        declared_digest=Digest(digest) if digest is not None else None,
    )


def ask_self(at: ShadowPool, level: Level = Level.TOKEN, settings: CheckSettings = SETTINGS) -> CheckReport:
    return asyncio.run(self_check(at, settings, level=level, rollout="r", global_seed="s"))


def ask_both(
    old: FakeEngine | ShadowPool,
    new: FakeEngine | ShadowPool,
    level: Level = Level.TOKEN,
    settings: CheckSettings = SETTINGS,
    floor: Floor | None = None,
) -> CheckReport:
    pools = [
        one if isinstance(one, ShadowPool) else pool(one, name=name)
        for one, name in ((old, "old"), (new, "new"))
    ]
    return asyncio.run(quick_check(*pools, settings, level=level, rollout="r", global_seed="s", floor=floor))


class Unsteady(FakeEngine):
    """From its n-th generation on another token, so near that only the order of two choices swaps."""

    def __init__(self, *args: Any, after: int, gap_nats: float = 0.01, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.after = after
        self.gap_nats = gap_nats

    def step(self, prompt: Prompt, index: int) -> Step:
        made = fake_step(prompt, index)
        first, second, *rest = made.top_ids
        logprobs = (made.top_logprobs[0], made.top_logprobs[0] - self.gap_nats, *made.top_logprobs[2:])
        swapped = len(self.prompts) > self.after and index == 2
        ids = (second, first, *rest) if swapped else made.top_ids
        return Step(ids[0], logprobs[0], ids, logprobs, made.received_s, made.text)


class Shifted(FakeEngine):
    """Another model: its tokens are not among the other's."""

    def step(self, prompt: Prompt, index: int) -> Step:
        return fake_step(prompt, index, 5_000)


# -- the self check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", list(Level))
def test_baseline_that_reproduces_itself_passes_at_every_level(level: Level) -> None:
    engine = FakeEngine()
    report = ask_self(pool(engine), level)
    assert (report.answer, report.pairs, report.equal) == (Answer.PASS, 8, 8)
    assert len(engine.prompts) == 3 * 4
    assert engine.most_active == 1, "a self check asks one thing at a time"


def test_clean_check_claims_no_more_than_it_can() -> None:
    assert ask_self(pool(FakeEngine())).reason == (
        "old reproduces itself: all 8 repeated answers of 3 runs are equal, which bounds the share of forks "
        "at about 0.38 and does not prove it zero"
    )


def test_every_run_has_the_same_tokens_and_seed_and_a_cache_salt_of_its_own() -> None:
    engine = FakeEngine()
    ask_self(pool(engine))
    first = [one for one in engine.prompts if one.token_ids == engine.prompts[0].token_ids]
    assert len(first) == 3
    assert len({one.sampling.seed for one in first}) == 1
    assert first[0].sampling.temperature == 0
    assert first[0].sampling.max_tokens == 5
    assert len({one.cache_salt for one in engine.prompts}) == 12


@pytest.mark.parametrize("level", STRICT)
def test_unsteady_baseline_fails_where_equal_tokens_are_asked(level: Level) -> None:
    report = ask_self(pool(Unsteady("http://old", after=8)), level)
    assert report.answer is Answer.FAIL
    assert report.reason == (
        "old does not reproduce itself: 4 of 8 repeated answers forked (4 precision_drift; the first in "
        "prompt 'lighthouse' at output token 2, run 3 on http://old), so token equality cannot be asked of "
        "it: choose level statistical, or make it deterministic"
    )
    assert report.classes == {"precision_drift": 4}
    fork = report.prompts[0].forks[0]
    assert (fork.run, fork.fork_index, fork.left_margin_nats) == (3, 2, pytest.approx(0.01))


def test_unsteady_baseline_passes_at_statistical_with_its_floor_told() -> None:
    report = ask_self(pool(Unsteady("http://old", after=8)), Level.STATISTICAL)
    assert report.answer is Answer.PASS
    assert report.reason.startswith("old: 4 of 8 repeated answers are equal over 3 runs; its noise floor is ")
    assert report.floor.n == 8
    assert "floor" in report.facts


def test_endpoints_that_agree_with_themselves_but_not_with_each_other_fail() -> None:
    report = ask_self(pool(FakeEngine("http://a"), FakeEngine("http://b", fork_at=1)))
    assert report.answer is Answer.FAIL
    assert "http://b differs from http://a, their first run" in report.reason
    assert (report.pairs, report.equal) == (2 * 8 + 4, 2 * 8)


@pytest.mark.parametrize("level", list(Level))
def test_endpoints_that_encode_differently_fail_at_every_level(level: Level) -> None:
    report = ask_self(pool(FakeEngine("http://a"), FakeEngine("http://b", encode_shift=1)), level)
    assert report.answer is Answer.FAIL
    assert report.reason.startswith(
        "old does not answer as one environment: lighthouse: encoding_mismatch: prompt token IDs differ from "
        "position 0"
    )


@pytest.mark.parametrize("level", list(Level))
def test_environment_that_was_not_declared_fails(level: Level) -> None:
    report = ask_self(pool(FakeEngine(digest="sha256:b"), digest="sha256:a"), level)
    assert report.answer is Answer.FAIL
    assert "sha256:a is declared but sha256:b answered" in report.reason


def test_answer_that_breaks_its_contract_fails() -> None:
    report = ask_self(pool(FakeEngine(script=raising(BROKEN))), Level.STATISTICAL)
    assert report.answer is Answer.FAIL
    assert "token_ids are missing" in report.reason


@pytest.mark.parametrize("level", list(Level))
def test_baseline_that_does_not_answer_was_not_measured(level: Level) -> None:
    dead = raising(EngineUnavailable("http://fake", "connection reset"))
    report = ask_self(pool(FakeEngine(script=dead)), level)
    assert report.answer is Answer.ERROR
    assert report.reason == (
        "old: 12 answers did not come, the first: lighthouse: baseline on http://fake: failed: http://fake: "
        "connection reset"
    )


def test_pool_that_nobody_could_probe_was_not_measured() -> None:
    endpoint = FakeEndpoint(FakeEngine(), error="http://fake: connection refused")
    report = ask_self(pool(endpoint))
    assert report.answer is Answer.ERROR
    assert report.reason == "nothing was measured: pool old: http://fake: connection refused"


def test_fork_counts_also_where_other_answers_did_not_come() -> None:
    class Halfway(Unsteady):
        async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
            async for item in super().generate(prompt):
                if len(self.prompts) == 12 and isinstance(item, Finish):
                    raise EngineUnavailable("http://old", "reset")
                yield item

    report = ask_self(pool(Halfway("http://old", after=8)))
    assert report.answer is Answer.FAIL
    assert sum(len(one.failed) for one in report.prompts) == 1


def test_model_without_a_chat_template_is_asked_in_plain_words_and_the_report_says_so() -> None:
    class NoChat(FakeEngine):
        async def encode(self, call: Call) -> Encoding:
            if "messages" in call.body:
                raise EngineRefused(self.base_url, "400: no chat template", 400)
            return await super().encode(call)

    report = ask_self(pool(NoChat()))
    assert report.answer is Answer.PASS
    assert report.notes == (
        "asked as plain completions, without a chat template: http://fake: 400: no chat template",
    )


def test_check_waits_for_live_work_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr("forkgate.checks.ask.asyncio.sleep", sleep)
    engine = FakeEngine()
    engine.now = Load(running=3, waiting=1, kv_cache_usage=Fact(value=0.5), **_unknown_rest())
    report = ask_self(pool(engine))
    assert report.answer is Answer.PASS
    assert sum(one for one in slept if one == LULL_STEP_S) == LULL_S
    assert "12 of 12 answers shared their endpoint with other requests" in report.notes


def _unknown_rest() -> dict[str, Fact]:
    return {
        name: Fact(unknown="the test says so")
        for name in Load.__struct_fields__
        if name not in ("running", "waiting", "kv_cache_usage")
    }


# -- the quick check --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", list(Level))
def test_arms_that_agree_pass(level: Level) -> None:
    report = ask_both(FakeEngine(), FakeEngine(), level)
    assert (report.answer, report.reason) == (Answer.PASS, "4 prompts compared: 4 equal, no fork")


@pytest.mark.parametrize("level", list(Level))
def test_other_tokenizer_or_template_fails_and_no_token_is_made(level: Level) -> None:
    old, new = FakeEngine(), FakeEngine(encode_shift=1)
    report = ask_both(old, new, level)
    assert report.answer is Answer.FAIL
    assert report.reason.startswith(
        "4 of 4 prompts cannot be compared, the first: lighthouse: encoding_mismatch"
    )
    assert report.reason.endswith("give both pools the same tokenizer and chat template")
    assert old.prompts == new.prompts == []


@pytest.mark.parametrize("level", STRICT)
def test_any_fork_fails_where_equal_tokens_are_asked(level: Level) -> None:
    report = ask_both(FakeEngine(), FakeEngine(fork_at=2), level)
    assert report.answer is Answer.FAIL
    assert report.reason.startswith("4 of 4 prompts forked, the first 'lighthouse' at output token 2 (")
    assert f"at level {level.value} no fork may be" in report.reason


def test_near_ties_pass_at_statistical() -> None:
    settings = CheckSettings(prompts=10)
    report = ask_both(Unsteady(after=99), Unsteady(after=-1), Level.STATISTICAL, settings)
    assert report.answer is Answer.PASS
    assert report.reason == "10 prompts compared: 0 equal, 10 precision_drift"


def test_floor_of_the_self_check_makes_near_ties_of_them() -> None:
    report = ask_both(
        Unsteady(after=99),
        Unsteady(after=-1),
        Level.STATISTICAL,
        CheckSettings(prompts=10),
        Floor(sigma_nats=0.01, n=40),
    )
    assert report.classes == {"tie_flip": 10}


def test_another_model_fails_at_statistical() -> None:
    report = ask_both(FakeEngine(), Shifted(), Level.STATISTICAL, CheckSettings(prompts=10))
    assert report.answer is Answer.FAIL
    assert report.reason.startswith("10 of 10 prompts forked by distribution shift")


def test_too_few_prompts_cannot_tell_another_model_at_statistical() -> None:
    report = ask_both(FakeEngine(), Shifted(), Level.STATISTICAL, CheckSettings(prompts=2))
    assert report.answer is Answer.INCONCLUSIVE
    assert report.reason.endswith("raise checks.prompts")


def test_undeclared_penalty_is_a_configuration_mismatch() -> None:
    class Penalised(FakeEngine):
        """Draws the second choice of the very distribution that it shows."""

        def step(self, prompt: Prompt, index: int) -> Step:
            made = fake_step(prompt, index)
            if index < 2:
                return made
            return Step(made.top_ids[1], made.top_logprobs[1], made.top_ids, made.top_logprobs, 0.1, "x")

    exact = probe(dtype="float32")
    report = ask_both(
        pool(FakeEndpoint(FakeEngine(), exact)),
        pool(FakeEndpoint(Penalised(), exact), name="new"),
        Level.STATISTICAL,
    )
    assert report.answer is Answer.FAIL
    assert report.reason.startswith(
        "configuration mismatch in 4 of 4 prompts, the first 'lighthouse' at output token 2: the "
        "distributions are the same"
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            raising(REFUSED),
            "new does not answer what the baseline answers: lighthouse: candidate on http://fake: refused",
        ),
        (
            raising(EngineUnavailable("http://new", "reset"), 2),
            "new does not answer what the baseline answers: ",
        ),
        (raising(BROKEN), "4 of 4 prompts cannot be compared, the first: lighthouse: invalid_answer: "),
    ],
)
def test_candidate_that_fails_what_the_baseline_answers_fails_the_check(script: Any, said: str) -> None:
    report = ask_both(FakeEngine(), FakeEngine(script=script), Level.STATISTICAL)
    assert report.answer is Answer.FAIL
    assert report.reason.startswith(said)


def test_quick_check_that_knows_no_noise_floor_says_so() -> None:
    alone = ask_both(FakeEngine(), FakeEngine())
    after = ask_both(FakeEngine(), FakeEngine(), floor=Floor(sigma_nats=0.01, n=40))
    assert any("no noise floor excuses a fork" in note for note in alone.notes)
    assert after.notes == ()


def test_candidate_that_refuses_to_encode_fails_the_check() -> None:
    report = ask_both(FakeEngine(), FakeEngine(encode_error=REFUSED), Level.STATISTICAL)
    assert report.answer is Answer.FAIL
    assert "candidate on http://fake: refused: encoding: http://fake: 400: not that" in report.reason


def test_candidate_without_an_encoder_is_asked_in_the_baselines_tokens() -> None:
    error = CannotEncode("http://fake", "it has no /tokenize", goes_as_itself=False)
    report = ask_both(FakeEngine(), FakeEngine(encode_error=error))
    assert report.answer is Answer.PASS
    assert report.notes[0] == (
        "lighthouse: the candidate's own encoding is unknown: http://fake: it has no /tokenize"
    )


@pytest.mark.parametrize(
    "script", [raising(REFUSED), raising(BROKEN), raising(EngineUnavailable("http://f", "reset"))]
)
def test_baselines_failure_is_never_the_candidates(script: Any) -> None:
    report = ask_both(FakeEngine(script=script), FakeEngine())
    assert report.answer is Answer.ERROR
    assert report.reason.startswith("the baseline does not answer: lighthouse: baseline on http://fake: ")


def test_report_is_plain_data() -> None:
    report = ask_both(FakeEngine(), FakeEngine(fork_at=2))
    again = msgspec.json.decode(msgspec.json.encode(report), type=CheckReport)
    assert again == report


@pytest.mark.parametrize(("compared", "least"), [(1, None), (2, None), (3, 3), (5, 4), (10, 6), (16, 8)])
def test_domination_is_an_exact_binomial_test(compared: int, least: int | None) -> None:
    found = [shifted for shifted in range(compared + 1) if dominates(shifted, compared)]
    assert (found[0] if found else None) == least


def test_ten_prompts_hold_every_category() -> None:
    assert {one.category for one in PROMPTS[:10]} == {
        "short",
        "long_context",
        "chinese",
        "code",
        "structured_output",
        "near_stop",
        "low_margin",
    }
    assert len({one.id for one in PROMPTS}) == len(PROMPTS) == 16


# -- as text ----------------------------------------------------------------------------------------------


def test_report_reads_as_a_table_with_the_answer_last() -> None:
    report = ask_self(pool(Unsteady("http://old", after=8)), Level.STATISTICAL)
    lines = lines_of(msgspec.structs.replace(report, seconds=1.25))
    assert lines[0] == "self check of old at level statistical"
    assert lines[3].split() == [
        *("lighthouse", "short", "2", "1", "token", "2", "of", "run", "3:"),
        *lines[3].split()[9:],
    ]
    assert "precision drift, margins 0.01 / 0.01" in lines[3]
    assert "equal    4 of 8" in lines
    assert any(line.startswith("floor    ") and line.endswith(" 8 pairs") for line in lines)
    assert "asked    http://old, 1.2 s" in lines
    assert lines[-1] == f"pass: {report.reason}"


def test_pair_that_cannot_be_compared_says_why_in_its_row() -> None:
    lines = lines_of(ask_both(FakeEngine(), FakeEngine(encode_shift=1)))
    assert "encoding_mismatch: prompt token IDs differ from position 0" in lines[3]
    assert lines[-1].startswith("fail: 4 of 4 prompts cannot be compared")

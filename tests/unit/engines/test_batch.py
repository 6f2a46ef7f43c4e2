"""The reference engine's batch: right logits, own randomness, places freed at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from comparator.records import Sampling
from engines.reference import sampling
from engines.reference.batch import Batch, BatchThread, QueueFull
from engines.reference.job import Event, Job, generator_of
from engines.reference.model import LoadedModel
from engines.reference.text import TextOut
from tests.support.waiting import until

PROMPTS = [
    tuple(b"the quick brown fox"),
    tuple(b"a"),
    tuple(b"one two three four five six seven"),
    tuple(b"xyz!"),
]


class Ran:
    """Jobs of one batch and the events that each was told."""

    def __init__(self, model: LoadedModel, *, max_batch: int = 8, prefill_chunk: int = 512) -> None:
        self.model = model
        self.batch = Batch(model, max_batch=max_batch, prefill_chunk=prefill_chunk)
        self.events: dict[str, list[Event]] = {}

    def submit(self, job_id: str, prompt: Sequence[int], params: Sampling, *, priority: int = 0) -> None:
        self.batch.submit(job_of(self.model, job_id, prompt, params, self.events, priority))

    def to_end(self) -> None:
        while not self.batch.idle:
            self.batch.step()

    def ids(self, job_id: str) -> list[int | None]:
        return [event.token_id for event in self.events[job_id]]


def job_of(
    model: LoadedModel,
    job_id: str,
    prompt: Sequence[int],
    params: Sampling,
    events: dict[str, list[Event]],
    priority: int = 0,
) -> Job:
    eos = frozenset() if params.ignore_eos else frozenset(model.eos_token_ids)
    return Job(
        job_id=job_id,
        prompt=tuple(prompt),
        params=params,
        generator=generator_of(params.seed),
        ends=eos.union(params.stop_token_ids),
        eos=eos,
        text=TextOut(model.tokenizer, prompt, params.stop),
        emit=events.setdefault(job_id, []).append,
        priority=priority,
    )


def alone(model: LoadedModel, prompt: Sequence[int], params: Sampling) -> list[Event]:
    ran = Ran(model)
    ran.submit("only", prompt, params)
    ran.to_end()
    return ran.events["only"]


def params_of(tokens: int = 24, **other: object) -> Sampling:
    return Sampling(max_tokens=tokens, ignore_eos=True, **other)  # type: ignore[arg-type]


def logits_without_cache(model: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    """What transformers itself computes for a whole sequence at once, ``[tokens, V]``."""
    with torch.inference_mode():
        logits: torch.Tensor = model.network(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
    return logits[0].float()


@pytest.mark.parametrize("prefill_chunk", [1, 5, 512])
def test_every_row_of_a_ragged_batch_gets_the_logits_of_its_own_sequence(
    tiny: LoadedModel, prefill_chunk: int
) -> None:
    ran = Ran(tiny, prefill_chunk=prefill_chunk)
    for place, prompt in enumerate(PROMPTS):
        ran.submit(str(place), prompt, params_of(20, temperature=0.0, logprobs=5))
    ran.to_end()
    for place, prompt in enumerate(PROMPTS):
        events = ran.events[str(place)]
        ids = [event.token_id for event in events]
        expected = torch.log_softmax(
            logits_without_cache(tiny, [*prompt, *ids])[len(prompt) - 1 : -1], dim=-1
        )
        assert len(events) == 20
        for step, event in enumerate(events):
            assert event.token_id == int(expected[step].argmax())
            assert event.logprob == pytest.approx(float(expected[step][event.token_id]), abs=2e-4)
            told = torch.tensor(event.top_logprobs)
            assert torch.allclose(told, expected[step][event.top_ids], atol=2e-4)
            assert torch.allclose(told, expected[step].topk(5).values, atol=2e-4)


def test_rows_that_leave_and_join_in_mid_batch_disturb_no_neighbour(tiny: LoadedModel) -> None:
    lengths = [3, 30, 7, 12, 25, 1, 18]
    ran = Ran(tiny, max_batch=3)
    for place, tokens in enumerate(lengths):
        ran.submit(str(place), PROMPTS[place % 4], params_of(tokens, temperature=0.7, seed=place))
    ran.to_end()
    for place, tokens in enumerate(lengths):
        by_itself = alone(tiny, PROMPTS[place % 4], params_of(tokens, temperature=0.7, seed=place))
        assert ran.ids(str(place)) == [event.token_id for event in by_itself]
    assert max(event.batch_size for events in ran.events.values() for event in events) == 3


def test_a_seed_draws_the_same_whatever_the_neighbours_draw(tiny: LoadedModel) -> None:
    params = params_of(24, temperature=1.0, seed=77)
    expected = [event.token_id for event in alone(tiny, PROMPTS[0], params)]
    for neighbours in (1, 5):
        ran = Ran(tiny)
        for place in range(neighbours):
            ran.submit(
                f"n{place}", PROMPTS[1 + place % 3], params_of(11 + place, temperature=1.3, seed=place)
            )
        ran.submit("mine", PROMPTS[0], params)
        ran.to_end()
        assert ran.ids("mine") == expected


def test_another_seed_draws_other_tokens(tiny: LoadedModel) -> None:
    draws = {
        tuple(e.token_id for e in alone(tiny, PROMPTS[0], params_of(16, seed=seed))) for seed in range(8)
    }
    assert len(draws) == 8


def test_draws_follow_the_distribution(tiny: LoadedModel) -> None:
    """2,000 seeds, chi-square over the 8 likeliest tokens and the rest: false alarm under 1e-6."""
    from scipy import stats

    logits = logits_without_cache(tiny, PROMPTS[0])[-1]
    events: dict[str, list[Event]] = {}
    params = [params_of(1, temperature=0.8, seed=seed) for seed in range(2000)]
    counts = torch.zeros(logits.shape[0])
    for one in params:
        job = job_of(tiny, "x", PROMPTS[0], one, events)
        counts[sampling.choose(logits[None], [job])[0]] += 1
    expected = torch.softmax(logits / 0.8, dim=-1)
    likeliest = expected.topk(8).indices
    seen = [*counts[likeliest].tolist(), 2000 - counts[likeliest].sum().item()]
    due = [*(2000 * expected[likeliest]).tolist(), 2000 * (1 - expected[likeliest].sum()).item()]
    statistic = sum((s - d) ** 2 / d for s, d in zip(seen, due, strict=True) if d > 1)
    assert stats.chi2.sf(statistic, df=8) > 1e-6


@pytest.mark.parametrize("where", ["waiting", "reading", "running"])
def test_an_abort_frees_the_place_for_the_next_step(tiny: LoadedModel, where: str) -> None:
    ran = Ran(tiny, max_batch=1, prefill_chunk=4 if where == "reading" else 512)
    ran.submit("first", PROMPTS[2], params_of(500))
    ran.batch.step()
    ran.submit("second", PROMPTS[1], params_of(2))
    ran.batch.step()
    assert ran.events["second"] == []
    assert ran.batch.abort("second" if where == "waiting" else "first")
    told = len(ran.events["first"])
    if where == "waiting":
        assert ran.batch.waiting == 0
        ran.batch.step()
        assert len(ran.events["first"]) == told + 1
        return
    assert ran.batch.running == 0
    assert ran.batch.held_tokens == 0
    ran.batch.step()
    assert len(ran.events["first"]) == told
    assert len(ran.events["second"]) == 1
    assert not ran.batch.abort("first")


def test_an_abort_in_the_middle_keeps_the_other_rows_right(tiny: LoadedModel) -> None:
    ran = Ran(tiny)
    for place, prompt in enumerate(PROMPTS):
        ran.submit(str(place), prompt, params_of(30, temperature=0.9, seed=place))
    for _ in range(9):
        ran.batch.step()
    assert ran.batch.abort("1")
    ran.to_end()
    for place in (0, 2, 3):
        by_itself = alone(tiny, PROMPTS[place], params_of(30, temperature=0.9, seed=place))
        assert ran.ids(str(place)) == [event.token_id for event in by_itself]


def test_waiting_jobs_are_taken_by_priority_then_arrival(tiny: LoadedModel) -> None:
    ran = Ran(tiny, max_batch=1)
    ran.submit("runs", PROMPTS[0], params_of(3))
    ran.batch.step()
    for name, priority in (("late", 5), ("a", 0), ("b", 0), ("urgent", -1)):
        ran.submit(name, PROMPTS[1], params_of(1), priority=priority)
    order = []
    while not ran.batch.idle:
        ran.batch.step()
        order += [name for name in ("late", "a", "b", "urgent") if ran.events[name] and name not in order]
    assert order == ["urgent", "a", "b", "late"]


def test_a_row_grows_past_the_first_columns(tiny: LoadedModel) -> None:
    prompt = tuple(b"longer than the first allocation. " * 9)
    events = alone(tiny, prompt, params_of(260, temperature=0.0))
    ids = [event.token_id for event in events]
    expected = logits_without_cache(tiny, [*prompt, *ids])[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
    assert ids == expected


def test_each_event_tells_its_batch_size_and_place(tiny: LoadedModel) -> None:
    ran = Ran(tiny)
    for name in ("a", "b"):
        ran.submit(name, PROMPTS[0], params_of(4))
    ran.to_end()
    assert [event.batch_size for event in ran.events["a"]] == [1, 1, 2, 2]
    assert [event.batch_place for event in ran.events["b"]] == [0, 1, 1, 0]


def test_the_end_of_sequence_token_ends_it_and_min_tokens_forbids_it(tiny: LoadedModel) -> None:
    eos = tiny.eos_token_ids[0]
    biased = {"logit_bias": {str(eos): 100.0}}
    events = alone(tiny, PROMPTS[0], Sampling(max_tokens=9, temperature=0.0, **biased))
    assert [(event.token_id, event.finish_reason, event.stop_reason) for event in events] == [
        (eos, "stop", None)
    ]
    events = alone(tiny, PROMPTS[0], Sampling(max_tokens=9, temperature=0.0, min_tokens=4, **biased))
    assert [event.token_id == eos for event in events] == [False] * 4 + [True]
    events = alone(tiny, PROMPTS[0], Sampling(max_tokens=3, temperature=0.0, ignore_eos=True, **biased))
    assert [event.token_id for event in events] == [eos] * 3
    assert events[-1].finish_reason == "length"


def test_a_stop_token_of_the_request_is_told_as_the_reason(tiny: LoadedModel) -> None:
    events = alone(tiny, PROMPTS[0], params_of(9, temperature=0.0))
    wanted = events[2].token_id
    first = [event.token_id for event in events].index(wanted)
    stopped = alone(tiny, PROMPTS[0], params_of(9, temperature=0.0, stop_token_ids=(wanted,)))
    assert len(stopped) == first + 1
    assert (stopped[-1].finish_reason, stopped[-1].stop_reason) == ("stop", wanted)


def test_logprobs_are_told_before_any_processor(tiny: LoadedModel) -> None:
    plain = alone(tiny, PROMPTS[0], params_of(1, temperature=0.0, logprobs=3))[0]
    bent = alone(
        tiny, PROMPTS[0], params_of(1, temperature=0.3, logprobs=3, top_k=2, logit_bias={"7": 50.0})
    )[0]
    assert bent.token_id == 7
    assert (bent.top_ids, bent.top_logprobs) == (plain.top_ids, plain.top_logprobs)


def test_the_thread_refuses_more_than_may_wait_and_stops_at_once(tiny: LoadedModel) -> None:
    crashes: list[BaseException] = []
    thread = BatchThread(Batch(tiny, max_batch=1, prefill_chunk=8), max_waiting=2, on_crash=crashes.append)
    events: dict[str, list[Event]] = {}
    for name in ("a", "b"):
        thread.submit(job_of(tiny, name, PROMPTS[0], params_of(900), events))
    with pytest.raises(QueueFull):
        thread.submit(job_of(tiny, "c", PROMPTS[0], params_of(9), events))
    thread.start()
    until(lambda: len(events["a"]) > 2)
    thread.abort("a")
    until(lambda: len(events["b"]) > 2)
    assert thread.load()[:2] == (1, 0)
    thread.stop()
    assert len(events["b"]) < 900
    assert crashes == []


def test_a_crash_in_the_thread_is_told(tiny: LoadedModel) -> None:
    crashes: list[BaseException] = []
    thread = BatchThread(Batch(tiny, max_batch=1, prefill_chunk=8), max_waiting=2, on_crash=crashes.append)
    thread.start()
    thread.submit(job_of(tiny, "a", (10**6,), params_of(9), {}))  # no such token: the embedding fails
    until(lambda: bool(crashes))
    assert isinstance(crashes[0], IndexError)
    thread.stop()

"""A forward pass for each request: places, memory and aborts, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comparator.records import Sampling
from engines.reference.alone import AloneBatch
from engines.reference.job import Event, Job, generator_of
from engines.reference.text import TextOut

if TYPE_CHECKING:
    from engines.reference.model import LoadedModel


class Jobs:
    """Submits jobs and keeps what they tell."""

    def __init__(self, model: LoadedModel) -> None:
        self.batch = AloneBatch(model, max_batch=2, prefill_chunk=4)
        self.told: dict[str, list[Event]] = {}
        self._model = model

    def submit(self, name: str, prompt: tuple[int, ...], max_tokens: int = 6) -> None:
        told = self.told[name] = []
        params = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=2)
        self.batch.submit(
            Job(
                job_id=name,
                prompt=prompt,
                params=params,
                generator=generator_of(0),
                ends=frozenset(),
                eos=frozenset(),
                text=TextOut(self._model.tokenizer, prompt, ()),
                emit=told.append,
            )
        )

    def finish(self) -> None:
        while not self.batch.idle:
            self.batch.step()

    def answer(self, name: str) -> list[tuple[int | None, float | None]]:
        return [(event.token_id, event.logprob) for event in self.told[name]]


def alone(model: LoadedModel, prompt: tuple[int, ...]) -> list[tuple[int | None, float | None]]:
    jobs = Jobs(model)
    jobs.submit("a", prompt)
    jobs.finish()
    return jobs.answer("a")


def test_requests_take_turns_and_each_pass_has_one_row(tiny: LoadedModel) -> None:
    jobs = Jobs(tiny)
    jobs.submit("a", (1, 2, 3))
    jobs.submit("b", (4, 5))
    jobs.batch.step()
    jobs.batch.step()
    assert jobs.batch.running == 2
    assert len(jobs.told["a"]) == 2
    assert len(jobs.told["b"]) == 1, "b did not wait for the end of a"
    jobs.finish()
    assert {(event.batch_size, event.batch_place) for told in jobs.told.values() for event in told} == {
        (1, 0)
    }
    assert jobs.answer("a") == alone(tiny, (1, 2, 3))
    assert jobs.answer("b") == alone(tiny, (4, 5))
    assert jobs.batch.held_tokens == 0


def test_aborts_free_memory_and_move_nothing_of_the_others(tiny: LoadedModel) -> None:
    jobs = Jobs(tiny)
    jobs.submit("gone", (9, 8, 7))
    jobs.submit("kept", (1, 2, 3))
    jobs.batch.step()
    jobs.batch.step()
    assert jobs.batch.abort("gone")
    jobs.submit("reading", tuple(range(1, 14)))
    jobs.batch.step()
    assert len(jobs.told["reading"]) == 0, "its prompt has four pieces"
    held = jobs.batch.held_tokens
    assert jobs.batch.abort("reading")
    assert jobs.batch.held_tokens == held - 4
    assert not jobs.batch.abort("reading")
    jobs.finish()
    assert jobs.answer("kept") == alone(tiny, (1, 2, 3))
    assert jobs.batch.held_tokens == 0
    assert len(jobs.told["gone"]) < 6

"""Continuous batching: jobs join and leave a running batch between any two forward passes.

:class:`Batch` is synchronous and owns no thread, so tests drive it step by step; :class:`BatchThread` runs
one on a thread of its own. Each :meth:`Batch.step` runs one pass over every row that is generating, then at
most one piece of one prompt. Waiting jobs are taken by priority (lower first), then by arrival.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

import torch

from engines.reference import sampling
from engines.reference.job import Event, Job
from engines.reference.model import LoadedModel


class QueueFull(Exception):  # noqa: N818
    """More jobs wait than ``max_waiting``."""


class Batch:
    """The rows that share forward passes, the prompt being read in, and those that wait."""

    def __init__(self, model: LoadedModel, *, max_batch: int, prefill_chunk: int) -> None:
        self._model = model
        self._max_batch = max_batch
        self._prefill_chunk = prefill_chunk
        self._waiting: list[tuple[int, int, Job]] = []
        self._arrivals = 0
        self._reading: Job | None = None
        self._reading_rows = model.new_rows(1)
        self._running: list[Job] = []
        self._rows = model.new_rows(max_batch)
        self.generated_tokens = 0
        """Since the engine started, aborted jobs included."""

    @property
    def running(self) -> int:
        """Jobs that hold a place."""
        return len(self._running) + (self._reading is not None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running or self._reading)

    @property
    def held_tokens(self) -> int:
        """Columns of key/value memory in use, over all rows."""
        return sum(self._rows.lengths) + sum(self._reading_rows.lengths)

    def submit(self, job: Job) -> None:
        self._arrivals += 1
        heapq.heappush(self._waiting, (job.priority, self._arrivals, job))

    def abort(self, job_id: str) -> bool:
        """Forget a job at once, wherever it stands; its place is free for the next step."""
        for place, job in enumerate(self._running):
            if job.job_id == job_id:
                self._leave(place)
                return True
        if self._reading is not None and self._reading.job_id == job_id:
            self._reading = None
            self._reading_rows.lengths = []
            return True
        kept = [entry for entry in self._waiting if entry[2].job_id != job_id]
        found = len(kept) < len(self._waiting)
        if found:
            heapq.heapify(kept)
            self._waiting = kept
        return found

    def step(self) -> None:
        """One token for every running job, then one piece of a prompt."""
        if self._running:
            self._decode()
        self._read_prompt()

    def _read_prompt(self) -> None:
        if self._reading is None:
            if not self._waiting or len(self._running) >= self._max_batch:
                return
            self._reading = heapq.heappop(self._waiting)[2]
            self._reading_rows.lengths = [0]
        job, done = self._reading, self._reading_rows.lengths[0]
        piece = job.prompt[done : done + self._prefill_chunk]
        tokens_1Q = torch.tensor([piece], device=self._model.device)
        logits_1V = self._model.forward(tokens_1Q, self._reading_rows)
        if self._reading_rows.lengths[0] < len(job.prompt):
            return
        self._rows.append_from(self._reading_rows, 0)
        self._reading_rows.lengths = []
        self._reading = None
        self._running.append(job)
        place = len(self._running) - 1
        if self._emit(logits_1V, [job], first_place=place):
            self._leave(place)

    def _decode(self) -> None:
        tokens_B1 = torch.tensor([[job.output[-1]] for job in self._running], device=self._model.device)
        logits_BV = self._model.forward(tokens_B1, self._rows)
        ended = self._emit(logits_BV, self._running, first_place=0)
        for place in reversed(ended):
            self._leave(place)

    @torch.inference_mode()
    def _emit(self, logits_BV: torch.Tensor, jobs: list[Job], *, first_place: int) -> list[int]:
        """Choose, tell and note one token a row. Returns the places whose jobs ended, ascending."""
        chosen = sampling.choose(logits_BV, jobs)
        depth = max(job.params.logprobs for job in jobs)
        top_ids, top_values, logprobs_BV = sampling.top_logprobs(logits_BV, depth)
        ended = []
        for row, (job, token_id) in enumerate(zip(jobs, chosen, strict=True)):
            depth = job.params.logprobs
            job.output.append(token_id)
            self.generated_tokens += 1
            text, finish_reason, stop_reason = _verdict(job, token_id)
            job.emit(
                Event(
                    job_id=job.job_id,
                    token_id=token_id,
                    logprob=float(logprobs_BV[row, token_id]),
                    top_ids=top_ids[row][:depth],
                    top_logprobs=top_values[row][:depth],
                    text=text,
                    finish_reason=finish_reason,
                    stop_reason=stop_reason,
                    batch_size=len(jobs),
                    batch_place=row,
                )
            )
            if finish_reason is not None:
                ended.append(first_place + row)
        return ended

    def _leave(self, place: int) -> None:
        self._rows.remove(place)
        last = self._running.pop()
        if place < len(self._running):
            self._running[place] = last


def _verdict(job: Job, token_id: int) -> tuple[str, str | None, int | str | None]:
    """Text that this token releases, and whether and why the job ends with it."""
    enough = len(job.output) >= job.params.min_tokens
    if enough and token_id in job.ends:
        return job.text.finish(), "stop", None if token_id in job.eos else token_id
    text, stop = job.text.push(token_id, may_stop=enough)
    if stop is not None:
        return text, "stop", stop
    if len(job.output) >= job.params.max_tokens:
        return text + job.text.finish(), "length", None
    return text, None, None


class BatchThread:
    """Runs a :class:`Batch` until stopped. All public methods are safe to call from any thread."""

    def __init__(self, batch: Batch, *, max_waiting: int, on_crash: Callable[[BaseException], None]) -> None:
        self._batch = batch
        self._max_waiting = max_waiting
        self._on_crash = on_crash
        self._changed = threading.Condition()
        self._inbox: list[Job] = []
        self._aborts: list[str] = []
        self._stopping = False
        self._running = self._waiting = self._held_tokens = self._generated_tokens = 0
        self._thread = threading.Thread(target=self._run, name="forkgate-batch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the step under way; running jobs get no more events."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises :class:`QueueFull`."""
        with self._changed:
            if self._waiting + len(self._inbox) >= self._max_waiting:
                raise QueueFull(f"{self._max_waiting} requests wait already")
            self._inbox.append(job)
            self._changed.notify()

    def abort(self, job_id: str) -> None:
        """Forget a job before the next step; unknown IDs are ignored, since it may just have ended."""
        with self._changed:
            self._aborts.append(job_id)
            self._changed.notify()

    def load(self) -> tuple[int, int, int, int]:
        """Jobs that hold a place, jobs that wait, tokens held in key/value memory, tokens made so far."""
        with self._changed:
            waiting = self._waiting + len(self._inbox)
            return self._running, waiting, self._held_tokens, self._generated_tokens

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # told to the server, which ends the process
            self._on_crash(error)

    def _turn(self) -> bool:
        with self._changed:
            self._publish()
            while not (self._stopping or self._inbox or self._aborts) and self._batch.idle:
                self._changed.wait()
            if self._stopping:
                return False
            inbox, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, []
            for job in inbox:
                self._batch.submit(job)
            for job_id in aborts:
                self._batch.abort(job_id)
            self._publish()
        if not self._batch.idle:
            self._batch.step()
        return True

    def _publish(self) -> None:
        self._running, self._waiting = self._batch.running, self._batch.waiting
        self._held_tokens = self._batch.held_tokens
        self._generated_tokens = self._batch.generated_tokens

"""Batching without sharing: many requests under way, each forward pass for one of them.

What a kernel does depends on the shapes it is given, so a request whose passes are shared with others gets
other sums when the others change. Here a pass has one row, in key/value memory of the request's own, cut at
the same places whatever else runs: a request's numbers are a function of the request alone. The cost is the
loss of batching; ``forkgate determinism audit`` measures it.
"""

from __future__ import annotations

import heapq

import torch

from engines.reference.batch import Batch
from engines.reference.job import Job
from engines.reference.model import LoadedModel
from engines.reference.rows import KeyValueRows


class AloneBatch(Batch):
    """A :class:`~engines.reference.batch.Batch` whose forward passes have one row each.

    Up to ``max_batch`` requests take turns, a token each, so that none waits for another's end.
    """

    def __init__(self, model: LoadedModel, *, max_batch: int, prefill_chunk: int) -> None:
        super().__init__(model, max_batch=max_batch, prefill_chunk=prefill_chunk)
        self._own: dict[str, KeyValueRows] = {}

    @property
    def held_tokens(self) -> int:
        return sum(rows.lengths[0] for rows in self._own.values())

    def abort(self, job_id: str) -> bool:
        if self._reading is not None and self._reading.job_id == job_id:
            del self._own[job_id]
            self._reading = None
            return True
        return super().abort(job_id)

    def _read_prompt(self) -> None:
        if self._reading is None:
            if not self._waiting or len(self._running) >= self._max_batch:
                return
            self._reading = heapq.heappop(self._waiting)[2]
            rows = self._model.new_rows(1)
            rows.lengths = [0]
            self._own[self._reading.job_id] = rows
        job = self._reading
        rows = self._own[job.job_id]
        done = rows.lengths[0]
        logits_1V = self._pass(job, list(job.prompt[done : done + self._prefill_chunk]))
        if rows.lengths[0] < len(job.prompt):
            return
        self._reading = None
        self._running.append(job)
        place = len(self._running) - 1
        if self._emit(logits_1V, [job], first_place=place):
            self._leave(place)

    def _decode(self) -> None:
        for place in reversed(range(len(self._running))):
            job = self._running[place]
            if self._emit(self._pass(job, [job.output[-1]]), [job], first_place=place):
                self._leave(place)

    def _pass(self, job: Job, tokens: list[int]) -> torch.Tensor:
        tokens_1Q = torch.tensor([tokens], device=self._model.device)
        return self._model.forward(tokens_1Q, self._own[job.job_id])

    def _leave(self, place: int) -> None:
        # The last job takes its place, as in the shared batch; its memory is its own and stays.
        del self._own[self._running[place].job_id]
        last = self._running.pop()
        if place < len(self._running):
            self._running[place] = last

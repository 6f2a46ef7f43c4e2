"""Scores answers in a process of their own, so that nothing an answer or a scorer does can stop the judge.

One warm process for all suites, asked one answer at a time. It is asked for all of a sample's questions at
once; if it hangs or dies over them, they are asked again one by one, so that one bad question costs no other
its score. A question that ends the process again and again is set aside for the rest of the suite.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter

import msgspec

from forkgate.config.suites import LoadedSuite
from forkgate.suites.child import ChildEndedError, ChildHungError, ScoringChild
from forkgate.suites.scorer_child import Ask, Load, Prepare
from policies.scoring import Judged, questions_of
from policies.suites import PythonCall, Sample

_LOG = logging.getLogger(__name__)


class ScorerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What scoring one answer may cost."""

    answer_s: float = 5.0
    """For all checks that are no user's own; each of those has its ``timeout_s`` on top."""
    load_s: float = 30.0
    """For running a user's file once, imports included."""
    answer_characters: int = 1_048_576
    """A longer answer is not scored."""
    memory_bytes: int = 2 * 2**30
    """Address space of the process: a scorer may load numpy, and not the machine's memory."""
    deaths: int = 3
    """Times in a row that a question may end the process before it is set aside for the rest of the suite."""


class Scorer:
    """Owns the process. One event loop; any number of tasks may ask."""

    def __init__(self, limits: ScorerLimits = ScorerLimits()) -> None:  # noqa: B008 - frozen
        self._limits = limits
        self._turn = asyncio.Lock()
        self._child: ScoringChild | None = None
        self._ready: set[tuple[str, str]] = set()
        """(suite, scorer or "") that the process has loaded."""
        self._broken: dict[tuple[str, str], str] = {}
        """(suite, scorer) → why it cannot be loaded."""
        self._deaths: Counter[tuple[str, str]] = Counter()
        self._numbers = itertools.count(1)

    async def score(self, loaded: LoadedSuite, sample: Sample, answer: str) -> tuple[Judged, ...]:
        """Every question of the sample about this answer; what could not be scored says why.

        Raises nothing but a cancellation.
        """
        questions = questions_of(sample)
        if len(answer) > self._limits.answer_characters:
            why = f"the answer has {len(answer)} characters, more than {self._limits.answer_characters}"
            return tuple(Judged(question=question, error=why) for question in questions)
        found: dict[str, Judged] = {}
        async with self._turn:
            left = await self._askable(loaded, sample, questions, found)
            if left and not await self._ask(loaded, sample, left, answer, found) and len(left) > 1:
                for question in left:
                    if await self._askable(loaded, sample, (question,), found):
                        await self._ask(loaded, sample, [question], answer, found)
        return tuple(found[question] for question in questions)

    def forget(self, loaded: LoadedSuite) -> None:
        """The suite starts anew: what was set aside is tried again."""
        for table in (self._broken, self._deaths):
            for key in [key for key in table if key[0] == loaded.digest]:
                del table[key]

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _ask(
        self,
        loaded: LoadedSuite,
        sample: Sample,
        questions: list[str],
        answer: str,
        found: dict[str, Judged],
    ) -> bool:
        """Fill ``found``. False when the process did not live through it: a single question's error is told
        then, of several none is."""
        limit_s = self._limits.answer_s + sum(
            loaded.source.scorers[name].timeout_s
            for question in questions
            for name in _scorers_of(sample, question)
        )
        try:
            child = await self._prepared(loaded)
            request = Ask(
                id=next(self._numbers), suite=loaded.digest, sample=_only(sample, questions), answer=answer
            )
            reply = await child.ask(request, limit_s)
        except (ChildHungError, ChildEndedError, OSError) as error:
            self._lost()
            if len(questions) == 1:
                self._deaths[_key(loaded, sample, questions[0])] += 1
                found[questions[0]] = Judged(question=questions[0], error=str(error))
                _LOG.warning(
                    "an answer could not be scored",
                    extra={"suite": loaded.name, "sample": sample.id, "why": str(error)},
                )
            return False
        except asyncio.CancelledError:
            self._lost()
            raise
        judged = {one.question: one for one in reply.judged}
        for question in questions:
            self._deaths.pop(_key(loaded, sample, question), None)
            found[question] = judged.get(
                question, Judged(question=question, error=reply.error or "the scorer told no score")
            )
        return True

    async def _askable(
        self, loaded: LoadedSuite, sample: Sample, questions: tuple[str, ...], found: dict[str, Judged]
    ) -> list[str]:
        """The questions that can be asked, their scorers loaded; of the others ``found`` says why not."""
        names = {name for question in questions for name in _scorers_of(sample, question)}
        while missing := [
            name
            for name in sorted(names)
            if not {(loaded.digest, name)} & (self._ready | self._broken.keys())
        ]:  # one that ends the process while it loads takes the others with it
            await self._load(loaded, missing[0])
        askable = []
        for question in questions:
            why = self._why_not(loaded, sample, question)
            if why is None:
                askable.append(question)
            else:
                found[question] = Judged(question=question, error=why)
        return askable

    def _why_not(self, loaded: LoadedSuite, sample: Sample, question: str) -> str | None:
        deaths = self._deaths[_key(loaded, sample, question)]
        if deaths >= self._limits.deaths:
            return f"set aside: it hung or ended its process {deaths} times in a row"
        for name in _scorers_of(sample, question):
            if (loaded.digest, name) in self._broken:
                return f"scorer {name!r}: {self._broken[loaded.digest, name]}"
        return None

    async def _load(self, loaded: LoadedSuite, name: str) -> None:
        source, key = loaded.source.scorers[name], (loaded.digest, name)
        request = Load(
            id=next(self._numbers),
            suite=loaded.digest,
            scorer=name,
            where=source.where,
            function=source.function,
            code=source.code,
        )
        try:
            child = await self._prepared(loaded)
            reply = await child.ask(request, self._limits.load_s)
        except (ChildHungError, ChildEndedError, OSError) as error:
            self._lost()
            self._broken[key] = f"{source.where} could not be loaded: {error}"
        except asyncio.CancelledError:
            self._lost()
            raise
        else:
            if reply.error is None:
                self._ready.add(key)
            else:
                self._broken[key] = f"{source.where} could not be loaded: {reply.error}"
        if key in self._broken:
            _LOG.error("a scorer cannot be used", extra={"suite": loaded.name, "why": self._broken[key]})

    async def _prepared(self, loaded: LoadedSuite) -> ScoringChild:
        """The process, with this suite's refusal rules."""
        if self._child is None:
            self._child = await ScoringChild.start(self._limits.memory_bytes)
        key = (loaded.digest, "")
        if key not in self._ready:
            source = loaded.source
            request = Prepare(
                id=next(self._numbers),
                suite=loaded.digest,
                refusal=source.refusal_content,
                refusal_where=source.refusal_where,
            )
            reply = await self._child.ask(request, self._limits.load_s)
            if reply.error is not None:
                await self._child.kill()
                raise ChildEndedError(f"refusal rules: {reply.error}")
            self._ready.add(key)
        return self._child

    def _lost(self) -> None:
        self._child = None
        self._ready.clear()

    async def _end(self) -> None:
        if self._child is not None:
            await self._child.kill()
        self._lost()


def _scorers_of(sample: Sample, question: str) -> tuple[str, ...]:
    """A user's scorers that a question calls."""
    checks = {"rules": sample.rules, "answer": (sample.answer,), "structured": (sample.structured,)}
    return tuple(check.scorer for check in checks.get(question, ()) if isinstance(check, PythonCall))


def _key(loaded: LoadedSuite, sample: Sample, question: str) -> tuple[str, str]:
    """What a question's deaths are counted under: its scorers, which other samples call too, else itself."""
    scorers = _scorers_of(sample, question)
    return loaded.digest, " ".join(sorted(set(scorers))) if scorers else f"{question} of {sample.id}"


def _only(sample: Sample, questions: list[str]) -> Sample:
    """The sample, asking no more than these (and whether it refused, which is always asked)."""
    return msgspec.structs.replace(
        sample,
        rules=sample.rules if "rules" in questions else (),
        answer=sample.answer if "answer" in questions else None,
        structured=sample.structured if "structured" in questions else None,
    )

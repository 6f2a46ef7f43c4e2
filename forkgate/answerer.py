"""Who answers at one endpoint, as far as it is proved: by its answers, else by its last probe.

An address proves nothing: another engine may have been put in place behind it, between two requests. So the
digest that an answer tells counts the moment it is read, and a probe's only where answers tell none.

News may come late and out of order: live records of several edges come in batches, each with its answers'
own times. What is older than the last change is no news. And an address behind which two environments answer
in turn changes with every answer: that is said at once, then at most every :data:`AGAIN_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

from comparator.records import Fact

AGAIN_S = 10.0
"""Between two reports of an endpoint that goes back and forth, or tells ever new digests."""
MIXED_S = 60.0
"""An endpoint that came back to a digest within this time answers from several environments at once."""
RESTLESS = 5
"""Changes within that time, each to another digest: no engine is swapped as often."""
REMEMBERED = 16
"""Digests of one endpoint that are new only once, and changes that are looked back at."""
NEVER_TOLD = Fact(unknown="neither its answers nor its probe tell an environment digest")


class Answerer:
    """One endpoint. All times are unix seconds: of an answer's head where one is meant."""

    def __init__(self) -> None:
        self.digest: str | None = None
        """Told last."""
        self.in_answers = False
        """Its answers tell digests. One that tells none, then, is vouched for by nobody."""
        self.odd = 0
        """Answers that told something that is no digest."""
        self._since_unix_s = 0.0
        self._changes: deque[tuple[float, str]] = deque(maxlen=REMEMBERED)
        self._known: set[str] = set()
        self._reported_unix_s = 0.0

    @property
    def environment(self) -> Fact:
        """Digest of who answers there, or why it is unknown."""
        return NEVER_TOLD if self.digest is None else Fact(value=self.digest)

    def told(self, digest: str, at_unix_s: float) -> bool:
        """An answer told this digest. True when that is news to be reported now."""
        if digest == self.digest:
            self.in_answers = True
            return False
        if at_unix_s <= self._since_unix_s:
            return False  # of before the last change
        self.in_answers = True
        return self._change(digest, at_unix_s)

    def probed(self, digest: str | None, *, in_answers: bool, at_unix_s: float) -> None:
        """A probe ended, which is reported whole by itself.

        Args:
            digest: that it found; None where the engine tells none.
            in_answers: the answers to it told digests, so that the last of them counts.
        """
        self.in_answers = in_answers
        if in_answers or digest == self.digest:
            return
        if digest is None:
            self.digest, self._since_unix_s = None, at_unix_s
        else:
            self._change(digest, at_unix_s)

    def mixed(self, now_unix_s: float) -> tuple[str, ...]:
        """The digests that answer there in turn; empty while it is one."""
        late = self._late(now_unix_s)
        return tuple(sorted(set(late))) if len(late) > len(set(late)) else ()

    def restless(self, now_unix_s: float) -> bool:
        """Whether ever new digests answer there, and hardly one twice."""
        late = self._late(now_unix_s)
        return len(late) == len(set(late)) >= RESTLESS

    def _late(self, now_unix_s: float) -> list[str]:
        return [digest for at, digest in self._changes if now_unix_s - at <= MIXED_S]

    def _change(self, digest: str, at_unix_s: float) -> bool:
        self.digest, self._since_unix_s = digest, at_unix_s
        self._changes.append((at_unix_s, digest))
        new = digest not in self._known and len(self._known) < REMEMBERED
        if not new and at_unix_s - self._reported_unix_s < AGAIN_S:
            return False
        if new:
            self._known.add(digest)
        self._reported_unix_s = at_unix_s
        return True


def differences(
    pool: str,
    declared: str | None,
    answerers: Mapping[str, Answerer],
    probed: Collection[str],
    now_unix_s: float,
) -> Iterator[str]:
    """Why a pool is not the one environment that it should be, in words; nothing while it is.

    Args:
        declared: its ``environment_digest``.
        answerers: by URL.
        probed: URLs of engines that have answered a probe, so that their silence is their own.
    """
    if declared is None:
        steady = {
            url: one
            for url, one in answerers.items()
            if not (one.mixed(now_unix_s) or one.restless(now_unix_s))
        }
        yield from _several(pool, steady)
    for url, answerer in answerers.items():
        mixed = answerer.mixed(now_unix_s)
        if mixed:
            yield (
                f"pool {pool}: {url}: {len(mixed)} environments answer there in turn: {', '.join(mixed)}. Is "
                "a balancer before them? Name the engines themselves as endpoints"
            )
        elif answerer.restless(now_unix_s):
            # Without the digests: a trouble is logged when its words change.
            yield (
                f"pool {pool}: {url}: its answers tell ever new digests, so nothing of it is comparable. "
                "Does something that changes with every start or request go into its record?"
            )
        elif declared is not None and answerer.digest is None and url in probed:
            yield (
                f"pool {pool}: {url}: {declared} is declared, and neither its answers nor its probe tell a "
                "digest: its pairs are set aside. Give its engine what tells it, or declare none"
            )
        elif declared is not None and answerer.digest not in (None, declared):
            yield (
                f"pool {pool}: {url}: {declared} is declared and {answerer.digest} answers: its pairs are "
                "set aside. Put the declared environment there, or correct environment_digest"
            )


def _several(pool: str, answerers: Mapping[str, Answerer]) -> Iterator[str]:
    told: dict[str, list[str]] = {}
    for url, answerer in answerers.items():
        if answerer.digest is not None:
            told.setdefault(answerer.digest, []).append(url)
    if len(told) > 1:
        listed = "; ".join(f"{digest} at {', '.join(urls)}" for digest, urls in told.items())
        yield (
            f"pool {pool}: its endpoints answer from {len(told)} environments: {listed}. A rollout compares "
            "the one that it began with, sets others' pairs aside, and is not promoted before they are one"
        )

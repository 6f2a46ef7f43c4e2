"""One endpoint of a pool, as the judge watches it: what its engine can do, whether it answers, who it is."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from typing import Any

from comparator.records import Fact
from engines.base import Engine, Observable, Probe
from engines.transport import NOT_TOLD
from forkgate.answerer import Answerer

log = logging.getLogger(__name__)

IDENTITY_S = 60.0
"""Between two looks at who answers there: a reading of its load, one small request, where answers tell it;
else a probe, if a new connection was made since the last. Every arm's answer is such a look too."""


class LiveEndpoint:
    """One that clients' requests reach, and copies do not: known by what live answers tell."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answerer = Answerer()
        self.on_change: Callable[[str], None] = lambda digest: None
        """Told of a digest that another answer told before."""

    def told(self, digest: str, at_unix_s: float) -> None:
        """An answer, a shadow's or a client's, told who gave it, at this time by the clock of who read it."""
        before = self.answerer.digest
        news = self.answerer.told(digest, at_unix_s)
        if before is not None and self.answerer.digest != before:
            self.another(f"another environment answers there: {digest}, before {before}")
        if news:
            self.on_change(digest)

    def another(self, why: str) -> None:
        """It may be another engine than before."""


class Endpoint(LiveEndpoint):
    """One engine, what its last probe found, and whether it has answered since.

    Implements :class:`proxy.mirror.ShadowEndpoint`: arms say what they met, which is how a dead engine is
    known long before its next probe is due. Only a probe clears what they say.
    """

    def __init__(self, url: str, engine: Engine, kind: str) -> None:
        super().__init__(url)
        self.engine = engine
        self.kind = kind
        self.probe: Probe | None = None
        self.error: str | None = "not probed yet"
        self.doubted = asyncio.Event()
        """An arm got no answer, or another environment gave it: probe soon."""
        self.wanted = asyncio.Event()
        """Somebody waits for a probe: no pause is made before it."""
        self.probes = 0
        """That have ended, whatever came of them."""
        self.unknown_answered = False
        """Since the last probe, somebody answered who may be another, and did not tell."""
        self.tellings = 0
        """Answers that told who gave them."""
        self.probing = False
        self._looked_s = 0.0
        self._probed_s = 0.0
        self._answered_s: float | None = None
        self._silent_since_unix_s: float | None = None
        if isinstance(engine, Observable):
            engine.observe(self)

    @property
    def environment(self) -> Fact:
        """See :attr:`proxy.mirror.pools.ShadowEndpoint.environment`."""
        return self.answerer.environment

    @property
    def environment_in_answers(self) -> bool:
        """See :attr:`proxy.mirror.pools.ShadowEndpoint.environment_in_answers`."""
        return self.answerer.in_answers

    def answered_by(self, environment: Fact, *, new_connection: bool) -> None:
        """See :class:`engines.base.AnswerObserver`."""
        self._looked_s = time.monotonic()
        if environment.value is not None:
            self.tellings += 1
            self.told(environment.value, time.time())
            return
        self.answerer.odd += environment != NOT_TOLD
        if self.probing or not (new_connection or self.environment_in_answers):
            return
        # At once, but a probe for that once in a while at most: an idle connection ends after seconds, and a
        # gateway that answers in an engine's place tells nothing either.
        self.unknown_answered = True
        if self._looked_s - self._probed_s >= IDENTITY_S:
            self.doubted.set()

    def another(self, why: str) -> None:
        """Probe it soon; one that goes back and forth is known as that already."""
        if not self.doubted.is_set() and not self._back_and_forth():
            log.warning("engine is probed again", extra={"endpoint": self.url, "why": why})
            self.doubted.set()

    def _back_and_forth(self) -> bool:
        now = time.time()
        return bool(self.answerer.mixed(now)) or self.answerer.restless(now)

    @property
    def known_s(self) -> float | None:
        """When it was last known who answers there, on the monotonic clock: by a probe, or by an answer that
        told it. None: never, or it is being found out, or somebody has answered since who may be another."""
        if self.probe is None or self.probing or self.doubted.is_set() or self.unknown_answered:
            return None
        return max(self._probed_s, self._looked_s) if self.environment_in_answers else self._probed_s

    def want(self) -> int:
        """Have it probed at once, also right after a probe that failed.

        Returns:
            how many :attr:`probes` will have ended once one that begins from now on has.
        """
        self.wanted.set()
        self.doubted.set()
        return self.probes + self.probing + 1

    def unlooked_s(self) -> float:
        """Since an answer was looked at for who gave it."""
        return time.monotonic() - self._looked_s

    def answered(self) -> None:
        self._answered_s = time.monotonic()

    def not_answering(self, why: str) -> None:
        if self._silent_since_unix_s is None:
            self._silent_since_unix_s = time.time()
            log.warning("engine does not answer", extra={"endpoint": self.url, "error": why})
        self.error = why
        self.doubted.set()

    def probed(self, probe: Probe, *, in_answers: bool = False) -> None:
        """It answers. ``in_answers``: and its answers told who gave them."""
        digest = probe.facts.get("environment_digest")
        self.answerer.probed(
            None if digest is None else digest.value, in_answers=in_answers, at_unix_s=time.time()
        )
        self.probe, self.error, self._silent_since_unix_s = probe, None, None
        self.unknown_answered, self._probed_s = False, time.monotonic()
        self.answered()

    def not_probed(self, why: str) -> None:
        """A probe failed."""
        self.error = why
        if self.probe is not None and self._silent_since_unix_s is None:
            self._silent_since_unix_s = time.time()

    @property
    def trouble(self) -> str | None:
        """Why it is of no use now, in words; None while it answers."""
        if self.error is None:
            return None
        why = self.error.removeprefix(f"{self.url}: ")
        since_s = self._silent_since_unix_s
        if self.probe is None or since_s is None:
            return why  # it never answered
        since = datetime.datetime.fromtimestamp(since_s, tz=datetime.UTC)
        return f"not answering since {since:%Y-%m-%d %H:%M:%S} UTC: {why}"

    def view(self) -> dict[str, Any]:
        """For ``/v1/status``."""
        probe = self.probe
        return {
            "url": self.url,
            "engine": probe.engine if probe is not None else self.kind,
            "version": probe.version if probe is not None else None,
            "model": probe.model if probe is not None else None,
            "has": sorted(one.value for one in probe.has) if probe is not None else [],
            "missing": {one.value: why for one, why in probe.missing.items()} if probe is not None else {},
            "max_logprobs": probe.max_logprobs if probe is not None else None,
            "facts": {name: _fact(fact) for name, fact in probe.facts.items()} if probe is not None else {},
            **environment_view(self.answerer),
            "error": self.error,
            "trouble": self.trouble,
            "answered_s": None if self._answered_s is None else time.monotonic() - self._answered_s,
            "silent_since_unix_s": self._silent_since_unix_s,
        }


def environment_view(answerer: Answerer) -> dict[str, Any]:
    """Who answers at an endpoint, for ``/v1/status``."""
    known = answerer.digest is not None
    return {
        "environment": _fact(answerer.environment),
        "environment_by": ("answer" if answerer.in_answers else "probe") if known else None,
        "environments": list(answerer.mixed(time.time())),
        "odd_environments": answerer.odd,
    }


def _fact(fact: Any) -> Any:
    return {"value": fact.value} if fact.unknown is None else {"unknown": fact.unknown}

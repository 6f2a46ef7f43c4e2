"""Which environment an answer came from, which one a rollout compares, and what is done with the others'.

A rollout compares, of each pool, one environment: the declared one (``environment_digest``), else the one
that it met first since its gates began. Where the gates begin anew while endpoints differ, it is the one of
most endpoints. Old and new replicas of a pool are two environments, and nothing averages them:

- a pair that another environment answered is set aside (:mod:`comparator.compare`);
- a live record of another one is counted, in the metrics too, and no gate folds it. But a canary's request
  that failed is folded whoever failed it: to go home is right then, and failures alone promote nothing;
- an engine sample of another one is left out.

What is left out here is not journalled, so a replay folds what was folded.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from comparator.outcomes import live_failed
from comparator.records import EngineSample, LiveRecord
from forkgate.fleet import Fleet
from proxy.live import ODD_ENVIRONMENT

DIGEST = "environment_digest"
"""Among the facts of an endpoint."""
NONE_TOLD = "none told any more"
"""In place of a digest: the endpoint told one in this rollout and does not now. That is a change."""


def most_met(environments: Mapping[str, Mapping[str, str]]) -> str | None:
    """The digest of most endpoints of a pool, the first met among equals; None where none is known.

    Args:
        environments: endpoint → facts, in the order of meeting.
    """
    known = Counter(
        facts[DIGEST] for facts in environments.values() if facts.get(DIGEST, NONE_TOLD) != NONE_TOLD
    )
    return known.most_common(1)[0][0] if known else None


def is_foreign(item: LiveRecord | EngineSample, compared: str | None) -> bool:
    """Is it of another environment than the one that its pool is compared as, and not to be folded?"""
    if compared is None or item.environment in ("", compared):
        return False
    return not (isinstance(item, LiveRecord) and item.canary and live_failed(item) is True)


class LiveAnswers:
    """What live answers tell of who gave them: to whoever watches the endpoint, and what they leave out."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.time) -> None:
        self._fleet = fleet
        self._clock = clock

    def attribute(self, records: Sequence[LiveRecord]) -> list[LiveRecord]:
        """The same records. Where an answer told no environment, it is the one that the last probe of its
        endpoint found (``environment_by_probe``). Where an endpoint's answers tell one, an answer that does
        not is nobody's."""
        return [self._one(record) for record in records]

    def _one(self, record: LiveRecord) -> LiveRecord:
        if math.isnan(record.first_byte_s) or record.status < 200:  # nobody's answer, or a websocket
            return record
        endpoint = self._fleet.answering(record.pool, record.endpoint)
        if endpoint is None:
            return record
        answerer = endpoint.answerer
        if record.environment == ODD_ENVIRONMENT:
            answerer.odd += 1
            return record
        if record.environment:
            # An edge whose clock is ahead must not make what is told here, later, look old.
            head_unix_s = min(record.started_unix_s + record.first_byte_s, self._clock())
            endpoint.told(record.environment, head_unix_s)
            return record
        if answerer.digest is None:
            return record
        if answerer.in_answers and not record.environment_by_probe:
            return msgspec.structs.replace(record, environment=ODD_ENVIRONMENT)
        return msgspec.structs.replace(record, environment=answerer.digest, environment_by_probe=True)

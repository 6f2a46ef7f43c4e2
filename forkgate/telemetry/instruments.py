"""Every metric, in one place, with its unit and attributes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from comparator.comparison import Comparison
from comparator.records import Exchange, LiveRecord
from forkgate.telemetry.environments import EnvironmentLabels
from forkgate.telemetry.genai import BUCKETS, GenAi
from forkgate.telemetry.observed import Observed, RolloutObserved
from forkgate.telemetry.tenants import Tenants
from policies.verdict import Verdict

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_OVERHEAD_S = (
    *(0.000_01, 0.000_02, 0.000_03, 0.000_05, 0.000_075, 0.000_1, 0.000_15, 0.000_2, 0.000_3, 0.000_5),
    *(0.001, 0.002, 0.005, 0.01, 0.05, 0.25),
)
_FLIP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Instruments:
    """The judge's instruments. Each method records one kind of event."""

    def __init__(
        self,
        readers: Sequence[MetricReader],
        resource: Resource | Mapping[str, str],
        tenants: Iterable[str] | None,
        observe: Callable[[], Observed],
        rollouts: Callable[[], Sequence[RolloutObserved]] = tuple,
    ) -> None:
        """
        Args:
            tenants: names that may be told, any other is ``other``; None: nothing of a tenant is.
        """
        self._rollouts = rollouts
        self._tenants = Tenants(tenants)
        self._observe = observe
        self._environments = EnvironmentLabels()
        self._provider = MeterProvider(
            metric_readers=readers,
            resource=resource if isinstance(resource, Resource) else Resource.create(dict(resource)),
            views=[
                _buckets("forkgate.live.*", _LATENCY_S),
                _buckets("forkgate.flip.*", _FLIP_S),
                _buckets("forkgate.edge.*", _OVERHEAD_S),
                *(_buckets(name, edges) for name, edges in BUCKETS.items()),
            ],
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("forkgate")
        self._live = meter.create_counter(
            "forkgate.live.requests",
            "{request}",
            "Live requests by tenant, pool, environment that answered and class of status.",
        )
        self._aborted = meter.create_counter(
            "forkgate.live.aborted",
            "{request}",
            "Live requests that did not end well, by pool, environment and who broke them off.",
        )
        self._retried = meter.create_counter(
            "forkgate.live.retried",
            "{request}",
            "Live requests that another pool answered after the first had failed, by tenant, and by pool and "
            "environment that answered.",
        )
        self._live_bytes = meter.create_counter(
            "forkgate.live.response.size",
            "By",
            "Bytes of live answers by tenant, pool and environment that answered.",
        )
        self._ttfb = meter.create_histogram(
            "forkgate.live.time_to_first_byte",
            "s",
            "Request received to first response byte, by pool and environment that answered.",
        )
        self._overhead = meter.create_histogram(
            "forkgate.edge.overhead",
            "s",
            "What an edge added to a live answer's first byte: time in it before the request was written to "
            "its pool, and between the answer's head read and written.",
        )
        self._genai = GenAi(meter)
        self._pairs = meter.create_counter(
            "forkgate.shadow.pairs",
            "{pair}",
            "Finished pairs by rollout, the arm beside the baseline, environments that answered, and why "
            "they were set aside.",
        )
        self._arm_tokens = meter.create_counter(
            "forkgate.shadow.arm.tokens",
            "{token}",
            "Output tokens of finished arms, by rollout, pool, arm and environment that answered.",
        )
        self._forks = meter.create_counter(
            "forkgate.shadow.forks",
            "{fork}",
            "Forks of finished pairs, by rollout, the arm beside the baseline, environment that answered on "
            "it, and class.",
        )
        self._verdicts = meter.create_counter(
            "forkgate.gate.verdicts", "{verdict}", "Changes of a gate's answer, by rollout, gate and answer."
        )
        self._flip = meter.create_histogram(
            "forkgate.flip.duration",
            "s",
            "Deciding token to the last edge's acknowledgement of a rollback, waiting for the disk left out.",
        )
        self._fsync = meter.create_histogram(
            "forkgate.flip.fsync.duration", "s", "Waiting for the rollback latch to be on disk."
        )
        self._unacknowledged = meter.create_counter(
            "forkgate.flip.unacknowledged", "{edge}", "Edges that did not acknowledge a rollback in time."
        )
        for name, unit, text, read in self._gauges():
            meter.create_observable_gauge(name, [_callback(read)], unit, text)
        for name, unit, text, read in self._counters():
            meter.create_observable_counter(name, [_callback(read)], unit, text)

    def live(self, records: Sequence[LiveRecord]) -> None:
        """Live requests that ended."""
        requests: Counter[tuple[str | None, str, str, str]] = Counter()
        answered: Counter[tuple[str | None, str, str]] = Counter()
        for record in records:
            tenant = self._tenants(record.tenant)
            environment = self._environments.of(record.pool, record.environment)
            requests[tenant, record.pool, environment, _status_class(record.status)] += 1
            answered[tenant, record.pool, environment] += record.response_bytes
            by = {"forkgate.pool": record.pool, "forkgate.environment": environment}
            if not math.isnan(record.first_byte_s):
                self._ttfb.record(record.first_byte_s, by)
            if record.aborted_by:
                self._aborted.add(1, {**by, "forkgate.aborted_by": record.aborted_by})
            if record.retried:
                self._retried.add(1, {**_whose(tenant), **by})
        for (tenant, pool, environment, status), count in requests.items():
            self._live.add(
                count,
                {
                    **_whose(tenant),
                    "forkgate.pool": pool,
                    "forkgate.environment": environment,
                    "http.response.status_class": status,
                },
            )
        for (tenant, pool, environment), size in answered.items():
            self._live_bytes.add(
                size,
                {**_whose(tenant), "forkgate.pool": pool, "forkgate.environment": environment},
            )

    def overhead(self, seconds: Iterable[float]) -> None:
        """What an edge itself added to live answers; NaN where no byte of one came."""
        for one in seconds:
            if not math.isnan(one):
                self._overhead.record(one)

    def comparison(self, comparison: Comparison) -> None:
        """A finished comparison: its pairs, and the tokens of its arms."""
        for pair in comparison.pairs:
            self._pairs.add(
                1,
                {
                    "forkgate.rollout": comparison.rollout,
                    "forkgate.arm": pair.right.arm.value,
                    "forkgate.environment": self._environment_of(pair.right),
                    "forkgate.baseline_environment": self._environment_of(pair.left),
                    "forkgate.set_aside": pair.set_aside.value if pair.set_aside else "",
                },
            )
        arms = {arm.exchange_id: arm for pair in comparison.pairs for arm in (pair.left, pair.right)}
        for arm in arms.values():
            by = {
                "forkgate.rollout": comparison.rollout,
                "forkgate.pool": arm.pool,
                "forkgate.arm": arm.arm.value,
                "forkgate.environment": self._environment_of(arm),
            }
            self._arm_tokens.add(arm.timing.tokens, by)
            self._genai.arm(arm, by)

    def fork(self, rollout: str, pool: str, arm: str, environment: str | None, fork_class: str) -> None:
        """A fork of the baseline and ``arm``, which ran in ``pool`` and was answered by this environment."""
        self._forks.add(
            1,
            {
                "forkgate.rollout": rollout,
                "forkgate.arm": arm,
                "forkgate.environment": self._environments.of(pool, environment),
                "forkgate.fork_class": fork_class,
            },
        )

    def _environment_of(self, arm: Exchange) -> str:
        return self._environments.of(arm.pool, arm.environment_digest.value)

    def verdict(self, rollout: str, verdict: Verdict) -> None:
        """A gate's answer changed."""
        self._verdicts.add(
            1,
            {
                "forkgate.rollout": rollout,
                "forkgate.gate": verdict.gate,
                "forkgate.answer": verdict.answer.value,
            },
        )

    def flip(self, rollout: str, seconds: float, fsync_s: float, unacknowledged: int) -> None:
        """A rollback went out. ``seconds`` leave ``fsync_s`` out."""
        attributes = {"forkgate.rollout": rollout}
        self._flip.record(seconds, attributes)
        self._fsync.record(fsync_s, attributes)
        if unacknowledged:
            self._unacknowledged.add(unacknowledged, attributes)

    def close(self) -> None:
        self._provider.shutdown()

    def _gauges(self) -> list[_Read]:
        return [
            (
                "forkgate.edges.connected",
                "{edge}",
                "Edge workers on the link.",
                lambda: [Observation(self._observe().edges)],
            ),
            (
                "forkgate.routes.epoch",
                "{epoch}",
                "Epoch of the published route table.",
                lambda: [Observation(self._observe().epoch)],
            ),
            (
                "forkgate.shadow.in_flight",
                "{capture}",
                "Captures neither compared nor dropped yet.",
                lambda: [Observation(self._observe().in_flight)],
            ),
            (
                "forkgate.rollout.rolled_back",
                "1",
                "1 while a rollback is latched.",
                lambda: [
                    Observation(int(latched), {"forkgate.rollout": name})
                    for name, latched in self._observe().rolled_back.items()
                ],
            ),
            (
                "forkgate.rollout.stage",
                "1",
                "1 for the stage that a rollout stands in.",
                lambda: [
                    Observation(1, {"forkgate.rollout": one.name, "forkgate.stage": one.stage})
                    for one in self._rollouts()
                ],
            ),
            (
                "forkgate.rollout.held",
                "1",
                "1 while a rollout is held until a person has looked, by what holds it.",
                lambda: [
                    Observation(
                        int(one.held is not None),
                        {"forkgate.rollout": one.name, "forkgate.hold_cause": one.held or ""},
                    )
                    for one in self._rollouts()
                ],
            ),
            (
                "forkgate.rollout.tenants_home",
                "{tenant}",
                "Tenants that a rollout's gates, or a person, sent home while the others stay.",
                lambda: [
                    Observation(one.tenants_home, {"forkgate.rollout": one.name}) for one in self._rollouts()
                ],
            ),
            (
                "forkgate.gate.log_e",
                "{nat}",
                "Natural logarithm of a gate's e-value against each of its two hypotheses.",
                lambda: _of_verdicts(self._rollouts()),
            ),
            (
                "forkgate.gate.observations",
                "{observation}",
                "Observations that a gate's answer rests on.",
                lambda: [
                    Observation(verdict.n, {"forkgate.rollout": one.name, "forkgate.gate": verdict.gate})
                    for one in self._rollouts()
                    for verdict in one.verdicts()
                ],
            ),
            (
                "forkgate.suite.answers",
                "{answer}",
                "Answers of a suite in the present stage: there, and wanted.",
                lambda: [
                    Observation(
                        count,
                        {"forkgate.rollout": one.name, "forkgate.suite": suite, "forkgate.answers": which},
                    )
                    for one in self._rollouts()
                    for suite, counts in one.suites.items()
                    for which, count in zip(("there", "wanted"), counts, strict=True)
                ],
            ),
            (
                "forkgate.pool.endpoints",
                "{endpoint}",
                "Endpoints of a pool by the environment that answers there.",
                self._pool_endpoints,
            ),
            (
                "forkgate.pool.ready",
                "1",
                "1 while the pool that a rollout would go back to could take everything back, 0 while not.",
                lambda: [
                    Observation(int(ready), {"forkgate.pool": name})
                    for name, ready in self._observe().pools_ready.items()
                ],
            ),
            (
                "forkgate.pool.silent",
                "{endpoint}",
                "Live endpoints of a rollout's pools that do not answer the judge; no step is taken then.",
                lambda: [
                    Observation(count, {"forkgate.pool": name})
                    for name, count in self._observe().pools_silent.items()
                ],
            ),
            (
                "forkgate.hook.waiting",
                "{notice}",
                "Notices that a hook's receiver has not taken yet.",
                lambda: [
                    Observation(count, {"forkgate.hook": name})
                    for name, count in self._observe().hooks_waiting.items()
                ],
            ),
            (
                "forkgate.evidence.size",
                "By",
                "Evidence on disk.",
                lambda: [Observation(self._observe().evidence_bytes)],
            ),
        ]

    def _pool_endpoints(self) -> list[Observation]:
        counts: Counter[tuple[str, str]] = Counter()
        for (pool, digest), count in self._observe().environments.items():
            counts[pool, self._environments.of(pool, digest)] += count
        return [
            Observation(count, {"forkgate.pool": pool, "forkgate.environment": environment})
            for (pool, environment), count in counts.items()
        ]

    def _counters(self) -> list[_Read]:
        return [
            (
                "forkgate.live.set_aside",
                "{request}",
                "Live requests of another environment than the one compared, by rollout and pool.",
                lambda: _by_pool(self._observe().live_set_aside),
            ),
            (
                "forkgate.telemetry.exports",
                "{item}",
                "Spans, log records and exports of metrics, by signal and what became of them.",
                lambda: [
                    Observation(count, {"forkgate.signal": signal, "forkgate.outcome": outcome})
                    for (signal, outcome), count in self._observe().exports.items()
                ],
            ),
            (
                "forkgate.shadow.captures",
                "{capture}",
                "Requests drawn for a copy.",
                lambda: [Observation(self._observe().captured)],
            ),
            (
                "forkgate.shadow.compared",
                "{capture}",
                "Captures that became a pair.",
                lambda: [Observation(self._observe().compared)],
            ),
            (
                "forkgate.shadow.drops",
                "{capture}",
                "Captures that became no pair, by reason.",
                lambda: [
                    Observation(count, {"forkgate.reason": reason})
                    for reason, count in self._observe().dropped.items()
                ],
            ),
            (
                "forkgate.rollout.drops",
                "{capture}",
                "Captures of a rollout that the judge ended without a comparison, by reason.",
                lambda: _by_two(self._observe().rollout_drops, "forkgate.rollout", "forkgate.reason"),
            ),
            (
                "forkgate.shadow.refused",
                "{question}",
                "Copies, replicates and suite samples whose start was put off, by what stood in the way.",
                lambda: _by_two(self._observe().shadow_refused, "forkgate.rollout", "forkgate.refusal"),
            ),
            (
                "forkgate.hook.deliveries",
                "{notice}",
                "Notices to hooks, by what became of them: delivered, given_up or lost.",
                lambda: _by_two(self._observe().hook_deliveries, "forkgate.hook", "forkgate.outcome"),
            ),
            (
                "forkgate.hook.answers",
                "{answer}",
                "Answers of before_step hooks: allowed, vetoed, or silent where none came.",
                lambda: _by_two(self._observe().hook_answers, "forkgate.hook", "forkgate.answer"),
            ),
            (
                "forkgate.shadow.tokens",
                "{token}",
                "Prompt and output tokens of shadow arms, by rollout and pool.",
                lambda: _by_pool(self._observe().shadow_tokens),
            ),
            (
                "forkgate.shadow.requests",
                "{request}",
                "Generations that shadows asked for, by rollout and pool.",
                lambda: _by_pool(self._observe().shadow_requests),
            ),
        ]


_Read = tuple[str, str, str, Callable[[], list[Observation]]]


def _callback(read: Callable[[], list[Observation]]) -> Callable[[CallbackOptions], list[Observation]]:
    return lambda _options: read()


def _whose(tenant: str | None) -> dict[str, str]:
    return {} if tenant is None else {"forkgate.tenant": tenant}


def _by_pool(counts: Mapping[tuple[str, str], int]) -> list[Observation]:
    return _by_two(counts, "forkgate.rollout", "forkgate.pool")


def _by_two(counts: Mapping[tuple[str, str], int], first: str, second: str) -> list[Observation]:
    """``first`` and ``second``: the attributes that the keys are values of."""
    return [Observation(count, {first: one, second: other}) for (one, other), count in counts.items()]


def _of_verdicts(rollouts: Sequence[RolloutObserved]) -> list[Observation]:
    found = []
    for one in rollouts:
        for verdict in one.verdicts():
            for test, nats in (("rollback", verdict.rollback_nats), ("promotion", verdict.promotion_nats)):
                if nats is not None:
                    attributes = {
                        "forkgate.rollout": one.name,
                        "forkgate.gate": verdict.gate,
                        "forkgate.test": test,
                    }
                    found.append(Observation(nats, attributes))
    return found


def _buckets(name: str, edges: Sequence[float]) -> View:
    from opentelemetry.sdk.metrics import Histogram

    return View(
        instrument_type=Histogram, instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(edges)
    )


def _status_class(status: int) -> str:
    """``2xx``; ``none`` when the client left before there was a status."""
    return f"{status // 100}xx" if status else "none"

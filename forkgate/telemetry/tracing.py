"""Spans of shadow work: one a captured request, one below it for each arm that ran.

They are children of the client's own context, in the trace that the live request belongs to. OpenTelemetry
asks for links where a span has many causes, or is to stand in a trace of its own; a shadow has one cause, and
is wanted in that one's trace, beside the span that the engine made of the live request. It may outlive its
parent, which a child may. It is of kind CONSUMER: it took its cause from a queue.

::

    client's span ─┬─ engine's span of the live request        (the client's traceparent, untouched)
                   └─ shadow ─┬─ shadow.arm baseline  ── engine's span
                              └─ shadow.arm candidate ── engine's span

A span is held open from the start of its arm until its comparison is made, since only then is it known where
the arms forked and why. No span holds prompts, tokens or text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from comparator.comparison import Comparison
from comparator.pair import Pair
from comparator.records import Arm, Exchange, Outcome
from forkgate.config.telemetry import Traces
from forkgate.telemetry.genai import operation, provider
from proxy.link.values import Capture
from proxy.mirror import ArmPlan

log = logging.getLogger(__name__)

_MOST_OPEN = 16_384
"""Captures whose spans are open; a further one is not traced. Lanes run far fewer at once."""
_MODEL_CHARS = 128
_WELL = frozenset({Outcome.COMPLETED, Outcome.CUT, Outcome.ABORTED})
_NONE: Mapping[str, str] = {}
_NS = 1_000_000_000


class _Open(msgspec.Struct):
    span: Span
    arms: dict[str, Span] = {}


class Tracing:
    """What the mirror asks for headers, and the judge tells how it ended (``proxy.mirror.ports.Tracer``).
    All methods belong to the judge's loop; none waits or raises."""

    def __init__(
        self,
        section: Traces,
        resource: Resource,
        processors: Sequence[SpanProcessor],
        tenant_of: Callable[[str], str | None],
    ) -> None:
        """
        Args:
            tenant_of: what may be told of a tenant's name; None: nothing.
        """
        share = TraceIdRatioBased(section.sample_percent / 100)
        self._provider = TracerProvider(
            sampler=ParentBased(
                root=share, remote_parent_sampled=ALWAYS_ON if section.obey_clients else share
            ),
            resource=resource,
            shutdown_on_exit=False,
        )
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("forkgate")
        self._context = TraceContextTextMapPropagator()
        self._tenant_of = tenant_of
        self._open: dict[str, _Open] = {}

    def begin(self, capture: Capture) -> None:
        """A capture's arms are about to run."""
        if len(self._open) >= _MOST_OPEN:
            return
        attributes: dict[str, str] = {
            "forkgate.rollout": capture.rollout,
            "forkgate.capture_id": capture.capture_id,
            "forkgate.live_pool": capture.live_pool,
        }
        tenant = self._tenant_of(capture.tenant)
        if tenant is not None:
            attributes["forkgate.tenant"] = tenant
        span = self._tracer.start_span(
            "shadow",
            context=self._context.extract(_carrier(capture)),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )
        self._open[capture.capture_id] = _Open(span)

    def arm(self, plan: ArmPlan) -> Mapping[str, str]:
        """Headers that name an arm's span to its engine, so that the engine's own spans join. Empty where the
        capture is not traced at all; an unsampled one says so, and the engine begins no trace of its own."""
        found = self._open.get(plan.capture_id)
        if found is None:
            return _NONE
        context = set_span_in_context(found.span)
        span = self._tracer.start_span(
            "shadow.arm",
            context=context,
            kind=SpanKind.CLIENT,
            attributes={
                "forkgate.rollout": plan.rollout,
                "forkgate.arm": plan.arm.value,
                "forkgate.pool": plan.pool,
                "forkgate.exchange_id": plan.exchange_id,
                "forkgate.replicate": plan.replicate,
                "gen_ai.operation.name": operation(plan.call is None),
                "gen_ai.request.model": plan.model[:_MODEL_CHARS],
                "gen_ai.request.max_tokens": plan.sampling.max_tokens,
                "gen_ai.request.temperature": plan.sampling.temperature,
            },
        )
        found.arms[plan.exchange_id] = span
        headers: dict[str, str] = {}
        self._context.inject(headers, set_span_in_context(span))
        return headers

    def finished(self, comparison: Comparison, classes: Mapping[tuple[Arm, int], str]) -> None:
        """The comparison of a capture is made.

        Args:
            classes: (arm, replicate) → class of its fork from the baseline.
        """
        found = self._open.pop(comparison.capture_id, None)
        if found is None:
            return
        for pair in comparison.pairs:
            for exchange in (pair.left, pair.right):
                span = found.arms.pop(exchange.exchange_id, None)
                if span is not None:
                    _end_arm(span, exchange, pair, classes.get((exchange.arm, exchange.replicate)))
        candidates = [pair for pair in comparison.pairs if pair.right.arm is Arm.CANDIDATE]
        at = [pair.fork.fork_index for pair in candidates if pair.fork is not None]
        found.span.set_attribute("forkgate.pairs", len(comparison.pairs))
        found.span.set_attribute("forkgate.forked", bool(at))
        if at:
            found.span.set_attribute("forkgate.fork_index", min(at))
        _end(found)

    def dropped(self, capture_id: str, reason: str) -> None:
        """A capture ends without a comparison. Nothing where its spans have ended."""
        found = self._open.pop(capture_id, None)
        if found is None:
            return
        for span in (found.span, *found.arms.values()):
            span.set_attribute("forkgate.drop_reason", reason)
        _end(found)

    def close(self) -> None:
        """Send what is left. Blocks for as long as the exporter does: for a thread."""
        self._provider.shutdown()


def _carrier(capture: Capture) -> dict[str, str]:
    """The client's context. W3C Trace Context section 3.2: two of them are none."""
    parents = [value for name, value in capture.headers if name == b"traceparent"]
    if len(parents) != 1:
        return {}
    states = [value.decode("latin-1") for name, value in capture.headers if name == b"tracestate"]
    return {"traceparent": parents[0].decode("latin-1"), "tracestate": ",".join(states)}


def _end_arm(span: Span, exchange: Exchange, pair: Pair, fork_class: str | None) -> None:
    timing = exchange.timing
    span.set_attribute("forkgate.outcome", exchange.outcome.value)
    span.set_attribute("gen_ai.provider.name", provider(exchange.engine))
    span.set_attribute("gen_ai.usage.input_tokens", len(exchange.prompt_token_ids))
    span.set_attribute("gen_ai.usage.output_tokens", timing.tokens)
    where = urlsplit(exchange.endpoint)
    span.set_attribute("server.address", where.hostname or "")
    if where.port is not None:
        span.set_attribute("server.port", where.port)
    if exchange.environment_digest.value is not None:
        span.set_attribute("forkgate.environment", str(exchange.environment_digest.value))
    if timing.ttft_s is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", timing.ttft_s)
    if exchange is pair.right:
        if pair.set_aside is not None:
            span.set_attribute("forkgate.set_aside", pair.set_aside.value)
        if pair.fork is not None:
            span.set_attribute("forkgate.fork_index", pair.fork.fork_index)
        if fork_class is not None:
            span.set_attribute("forkgate.fork_class", fork_class)
    if exchange.outcome not in _WELL:
        # Its error's own words may be the engine's, and an engine may quote a prompt: the outcome is enough.
        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute("error.type", exchange.outcome.value)
    span.end(int((timing.started_unix_s + timing.total_s) * _NS))


def _end(found: _Open) -> None:
    for span in found.arms.values():  # arms that came into no pair
        span.end()
    found.span.end()

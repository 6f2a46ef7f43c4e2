"""Shadow arms under the names that OpenTelemetry's GenAI conventions have for them, beside our own.

The judge is a client of the engines that it asks, so durations are a client's. The two ``gen_ai.server``
names are what engines and their dashboards use for the time to the first token and the time per further one;
here they are measured beside the engine, over its connection, so that they hold what the network adds. All
arms of a comparison bear the same logprobs, which live requests do not: compare arms with each other.
"""

from __future__ import annotations

from opentelemetry.metrics import Meter

from comparator.records import Exchange, Outcome

DURATION = "gen_ai.client.operation.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105
FIRST_TOKEN = "gen_ai.server.time_to_first_token"  # noqa: S105
PER_TOKEN = "gen_ai.server.time_per_output_token"  # noqa: S105

DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
BUCKETS = {DURATION: DURATION_S, TOKEN_USAGE: TOKENS, FIRST_TOKEN: FIRST_TOKEN_S, PER_TOKEN: PER_TOKEN_S}
"""The boundaries that the conventions advise (of GenAI metrics, 1.38 and later)."""

_ANSWERED = frozenset({Outcome.COMPLETED, Outcome.CUT})


class GenAi:
    """Records finished arms."""

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            DURATION, "s", "A shadow arm from its request to its end, by pool, arm and environment."
        )
        self._usage = meter.create_histogram(
            TOKEN_USAGE, "{token}", "Input and output tokens of a shadow arm."
        )
        self._first = meter.create_histogram(
            FIRST_TOKEN, "s", "Last request byte sent to first token received, of a shadow arm that answered."
        )
        self._per_token = meter.create_histogram(
            PER_TOKEN, "s", "Time per output token after the first, of a shadow arm that answered."
        )

    def arm(self, arm: Exchange, attributes: dict[str, str]) -> None:
        """One arm that ended; ``attributes`` say whose it was and which environment answered."""
        by = {
            "gen_ai.operation.name": operation(arm.as_tokens),
            "gen_ai.provider.name": provider(arm.engine),
            **attributes,
        }
        answered = arm.outcome in _ANSWERED
        well = answered or arm.outcome is Outcome.ABORTED
        self._duration.record(arm.timing.total_s, by if well else {**by, "error.type": arm.outcome.value})
        self._usage.record(len(arm.prompt_token_ids), {**by, "gen_ai.token.type": "input"})
        self._usage.record(arm.timing.tokens, {**by, "gen_ai.token.type": "output"})
        if not answered:
            return
        if arm.timing.ttft_s is not None:
            self._first.record(arm.timing.ttft_s, by)
        per_token_s = arm.timing.tpot_s
        if per_token_s is not None:
            self._per_token.record(per_token_s, by)


def operation(as_tokens: bool) -> str:
    """``gen_ai.operation.name``: token IDs are completed; what a request that goes as itself asks for is the
    client's to say."""
    return "text_completion" if as_tokens else "_OTHER"


def provider(engine: str) -> str:
    """``gen_ai.provider.name``: the engine's name without its version."""
    return engine.partition(" ")[0]

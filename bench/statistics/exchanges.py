"""Comparisons of drawn answers as the mirror would hand them to a gate, with nothing in them but tokens."""

from __future__ import annotations

from collections.abc import Sequence

from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.records import Arm, CaptureId, Exchange, ExchangeId, Fact, Outcome, Sampling, Step, Timing

_TIMING = Timing(started_unix_s=0.0, ttft_s=None, last_token_s=None, total_s=0.0, tokens=0)


def drawn_comparison(
    name: str,
    baseline: Sequence[Sequence[int]],
    candidate: Sequence[Sequence[int]],
    control: Sequence[Sequence[int]] = (),
    temperature: float = 1.0,
) -> Comparison:
    """One prompt's answers on each arm, by replicate, all cut off by their length limit."""
    pairs = []
    for replicate, tokens in enumerate(baseline):
        left = _exchange(name, Arm.BASELINE, replicate, tokens, temperature)
        right = _exchange(name, Arm.CANDIDATE, replicate, candidate[replicate], temperature)
        pairs.append(compare(left, right))
        if control:
            again = _exchange(name, Arm.CONTROL, replicate, control[replicate], temperature)
            pairs.append(compare(left, again))
    return Comparison(
        capture_id=CaptureId(name), rollout="bench", tenant="-", cluster=name, pairs=tuple(pairs), unix_s=0.0
    )


def _exchange(name: str, arm: Arm, replicate: int, tokens: Sequence[int], temperature: float) -> Exchange:
    steps = tuple(
        Step(token_id=token, logprob=None, top_ids=(), top_logprobs=(), received_s=0.0) for token in tokens
    )
    return Exchange(
        exchange_id=ExchangeId(f"{name}/{arm}/{replicate}"),
        capture_id=CaptureId(name),
        arm=arm,
        replicate=replicate,
        rollout="bench",
        tenant="-",
        request_id=name,
        pool=arm.value,
        endpoint="-",
        engine="bench",
        environment_digest=Fact(unknown="a simulation has none"),
        prompt_token_ids=(1,),
        sampling=Sampling(max_tokens=max(1, len(tokens)), temperature=temperature, seed=replicate),
        as_tokens=True,
        token_only=False,
        steps=steps,
        finish_reason="length",
        outcome=Outcome.COMPLETED,
        timing=_TIMING,
    )

"""From two finished exchanges to a pair: is it evidence, and what does it say?

:func:`compare` is a function of the two exchanges alone, so that stored evidence gives the same pair again.
It answers what streaming (:class:`comparator.align.PairAligner`) answered; whoever streamed may hand that
result in and save the second pass.

Set-aside rules, the first that fits:

1. *encoding mismatch*: the arms' prompt token IDs differ.
2. *configuration mismatch*: sampling parameters, stop set, limits or logprob mode differ.
3. *digest mismatch*: an arm's pool declares an environment digest, or the comparison began with one, and what
   answered proved another, or none.
4. *invalid answer*: an arm broke its engine's contract at or before the fork step.
5. *baseline failed*: the left arm has no completed answer, so there is nothing to compare with.

Rules 4 and 5 are asked only of pairs without a fork. Whatever happens after the fork step (an abort because
that very fork rolled the release back, a cut, a reset) takes nothing from what was seen up to it.
"""

from __future__ import annotations

import msgspec

from comparator.align import Alignment, PairAligner
from comparator.errors import ComparatorError
from comparator.pair import Pair, SetAside
from comparator.records import Exchange, Fact, Outcome, Sampling

DECLARED_DIGEST = "declared_environment_digest"
"""Key in :attr:`Exchange.facts`: the digest that the arm's pool declares, set by whoever ran the exchange."""
COMPARED_DIGEST = "compared_environment_digest"
"""The same where none is declared: the digest of the environment that the comparison began with. Old and new
replicas of a pool are two environments, and are never averaged."""
DIGEST_BY = "environment_digest_by"
"""How the digest of who answered is known, in a word; "answer" where the answer itself told it."""

# Facts that are settings rather than circumstances: known on both arms and different means that another
# question was asked. batch_size, cache_salt and the like are circumstances.
_SETTING_FACTS = ("logprobs_mode",)


def compare(left: Exchange, right: Exchange, alignment: Alignment | None = None) -> Pair:
    """The pair of two finished exchanges of one capture; ``left`` is the arm compared with (the baseline).

    Args:
        left: the baseline's exchange.
        right: the candidate's or control's.
        alignment: what a :class:`PairAligner` over the same steps answered; computed here when absent.

    Raises:
        ComparatorError: the exchanges are not of one capture.
    """
    if left.capture_id != right.capture_id:
        raise ComparatorError(
            f"exchanges {left.exchange_id} and {right.exchange_id} are of captures {left.capture_id} and "
            f"{right.capture_id}; only two arms of one capture make a pair"
        )
    # Other prompts are other questions: their tokens are not comparable by position at all.
    if left.prompt_token_ids != right.prompt_token_ids:
        alignment = Alignment(
            fork=None, max_error_nats=None, max_error_index=None, compared_tokens=0, fault=None
        )
    elif alignment is None:
        alignment = align_exchanges(left, right)
    set_aside, reason = _set_aside(left, right, alignment)
    return Pair(
        capture_id=left.capture_id,
        left=left,
        right=right,
        fork=alignment.fork,
        max_error_nats=alignment.max_error_nats,
        set_aside=set_aside,
        set_aside_reason=reason,
    )


def align_exchanges(left: Exchange, right: Exchange) -> Alignment:
    """Align the steps of two finished exchanges; only an arm that completed has an end of its own."""
    aligner = PairAligner(left.arm, right.arm)
    aligner.push(left.arm, left.steps)
    aligner.push(right.arm, right.steps)
    aligner.finish(left.arm, left.outcome is Outcome.COMPLETED)
    aligner.finish(right.arm, right.outcome is Outcome.COMPLETED)
    return aligner.alignment()


def _set_aside(left: Exchange, right: Exchange, alignment: Alignment) -> tuple[SetAside | None, str | None]:
    reason = _encoding_difference(left, right)
    if reason is not None:
        return SetAside.ENCODING_MISMATCH, reason
    reason = _configuration_difference(left, right)
    if reason is not None:
        return SetAside.CONFIGURATION_MISMATCH, reason
    reason = _digest_difference(left) or _digest_difference(right)
    if reason is not None:
        return SetAside.DIGEST_MISMATCH, reason
    if alignment.fork is not None:
        return None, None
    if alignment.fault is not None:
        return SetAside.INVALID_ANSWER, alignment.fault
    for exchange in (left, right):
        if exchange.outcome is Outcome.INVALID:
            return SetAside.INVALID_ANSWER, f"{exchange.arm}: {exchange.error or 'broke its contract'}"
    if left.outcome is not Outcome.COMPLETED:
        return SetAside.BASELINE_FAILED, f"{left.arm} {left.outcome}: {left.error or 'no reason given'}"
    return None, None


def _encoding_difference(left: Exchange, right: Exchange) -> str | None:
    mine, other = left.prompt_token_ids, right.prompt_token_ids
    if mine == other:
        return None
    index = next(
        (i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other))
    )
    return (
        f"prompt token IDs differ from position {index} "
        f"({left.arm} has {len(mine)} tokens, {right.arm} {len(other)})"
    )


def _configuration_difference(left: Exchange, right: Exchange) -> str | None:
    if left.sampling != right.sampling:
        fields = [
            f"{name} {_short(getattr(left.sampling, name))} / {_short(getattr(right.sampling, name))}"
            for name in Sampling.__struct_fields__
            if getattr(left.sampling, name) != getattr(right.sampling, name)
        ]
        return f"sampling differs ({left.arm} / {right.arm}): " + ", ".join(fields)
    if left.as_tokens != right.as_tokens:
        return "one arm was sent token IDs, the other the original request"
    for name in _SETTING_FACTS:
        mine, other = _known(left, name), _known(right, name)
        if mine is not None and other is not None and mine != other:
            return f"{name} differs: {left.arm} {_short(mine)}, {right.arm} {_short(other)}"
    return None


def _digest_difference(exchange: Exchange) -> str | None:
    declared = _known(exchange, DECLARED_DIGEST)
    proved: Fact = exchange.environment_digest
    compared = _known(exchange, COMPARED_DIGEST) if declared is None else None
    wanted, why = (declared, "is declared") if compared is None else (compared, "is compared")
    if wanted is None or proved.value == wanted:
        return None
    if proved.value is None:
        return f"{exchange.arm}: {wanted} {why} but no digest was proved ({proved.unknown})"
    return f"{exchange.arm}: {wanted} {why} but {proved.value} answered"


def _known(exchange: Exchange, name: str) -> object:
    fact = exchange.facts.get(name)
    return None if fact is None else fact.value


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."

"""What the arms of one replicate came to: its pairs, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from comparator.align import Alignment
from comparator.compare import compare
from comparator.pair import Pair
from comparator.records import Arm, Exchange, Fact, Outcome
from proxy.ledger import DropReason
from proxy.mirror.errors import Dropped

ENDED = (Outcome.COMPLETED, Outcome.CUT)
"""An arm that ended by itself, or was cut on purpose."""
_NOT_TOLD = Fact(unknown="only one arm told the token IDs that it made of the request")


def pairs_of(
    ends: Mapping[Arm, Exchange], alignments: Mapping[Arm, Alignment], aborted: Dropped | None
) -> tuple[Pair, ...]:
    """Baseline and candidate first, then baseline and control; all hold one and the same baseline.

    Args:
        ends: of the arms that were asked.
        alignments: by the arm that was to stand beside the baseline, asked or not.
        aborted: why the arms were stopped, if they were.

    Raises:
        Dropped: the replicate is worth nothing, not even as a pair set aside.
    """
    left, right = ends[Arm.BASELINE], ends.get(Arm.CANDIDATE)
    measured = Arm.CANDIDATE if Arm.CANDIDATE in alignments else Arm.CONTROL
    if alignments[measured].fork is None:
        _check(left, ends.get(measured), aborted)
    pairs = []
    if right is not None:
        left, right = _same_echo(left, right)
        pairs.append(compare(left, right, alignments[Arm.CANDIDATE]))
    control = ends.get(Arm.CONTROL)
    usable = None if control is None else _usable(left, control, alignments[Arm.CONTROL])
    if usable is not None:
        pairs.append(compare(left, usable, alignments[Arm.CONTROL]))
    if not pairs:
        how = "was not run" if control is None else f"ended {control.outcome}: {control.error}"
        raise Dropped(DropReason.BASELINE_UNAVAILABLE, f"the baseline's second run {how}")
    return tuple(pairs)


def _check(baseline: Exchange, end: Exchange | None, aborted: Dropped | None) -> None:
    """Raises Dropped where no fork is decided and nothing else is to be seen."""
    whole = baseline.outcome in ENDED and end is not None and end.outcome is not Outcome.ABORTED
    if aborted is not None and not whole:
        raise aborted
    if baseline.outcome in ENDED or baseline.steps:
        return
    if baseline.outcome is Outcome.REFUSED:
        raise Dropped(DropReason.UNSUPPORTED, f"the baseline refuses it: {baseline.error}")
    raise Dropped(DropReason.BASELINE_UNAVAILABLE, f"{baseline.outcome}: {baseline.error}")


def _usable(left: Exchange, control: Exchange, alignment: Alignment) -> Exchange | None:
    """The control where it can stand beside the baseline, be it in a pair set aside.

    One that failed before it forked would read as one that did not fork.
    """
    if control.outcome not in (*ENDED, Outcome.INVALID) and alignment.fork is None:
        return None
    if control.as_tokens or bool(control.prompt_token_ids) == bool(left.prompt_token_ids):
        return control
    return None if left.prompt_token_ids else _blank(control)


def _same_echo(left: Exchange, right: Exchange) -> tuple[Exchange, Exchange]:
    """Requests that went as themselves: prompts are known by echo only, so both or neither."""
    if left.as_tokens or bool(left.prompt_token_ids) == bool(right.prompt_token_ids):
        return left, right
    return _blank(left), _blank(right)


def _blank(exchange: Exchange) -> Exchange:
    facts = {**exchange.facts, "prompt_token_ids": _NOT_TOLD}
    return msgspec.structs.replace(exchange, prompt_token_ids=(), facts=facts)

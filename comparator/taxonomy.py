"""What kind of fork is it? The first rule that fits.

1. *encoding mismatch*: prompt IDs differ. Holds the rollout, does not blame the numbers.
2. *configuration mismatch*: sampling, stop set, limits or logprob mode differ.
   (Token streams equal to the end: *none*.)
3. *truncation*: one output is a proper prefix of the other.
4. *unclassifiable*: a side has no logprobs at the fork, so that none of the rules below can be asked.
5. *sampling stream*: the distributions at the fork are the same, yet the choices differ: another seed,
   generator, temperature or top-p, or a penalty, bias or grammar at work on one arm, whatever was declared.
   At temperature 0 the margin must also be beyond what precision and floor explain.
6. *tie flip* (temperature 0): the arms chose two tokens that both hold at their top within what precision
   and floor explain. *Coupled flip* (above 0): one shared draw fell between two nearly equal distributions.
7. *precision drift*: the error up to the fork is under the cap (at temperature 0 each token also stands in
   the other's top-k).
8. *distribution shift*: the rest.

Everything is taken at the fork step, whose prefix both arms share, and from the running error up to and
including it, so that a fork is classified the moment it is seen.
"""

from __future__ import annotations

import enum

import msgspec

from comparator.distribution import common_tv
from comparator.floor import Floor
from comparator.pair import Fork, ForkSide, Pair, SetAside
from comparator.precision import TV_PER_NAT
from comparator.records import Sampling

SAME_TV = 1e-3
"""Distributions closer than this are the same one."""

EXACT_TIE_NATS = 1e-6

DEFAULT_CAP_NATS = 1.0


class ForkClass(enum.StrEnum):
    """What a fork is put down to; the module says by which rules."""

    NONE = "none"
    ENCODING_MISMATCH = "encoding_mismatch"
    CONFIGURATION_MISMATCH = "configuration_mismatch"
    TRUNCATION = "truncation"
    SAMPLING_STREAM = "sampling_stream"
    TIE_FLIP = "tie_flip"
    COUPLED_FLIP = "coupled_flip"
    PRECISION_DRIFT = "precision_drift"
    DISTRIBUTION_SHIFT = "distribution_shift"
    UNCLASSIFIABLE = "unclassifiable"


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """A fork's class, and why this one."""

    fork_class: ForkClass
    reason: str
    """In words and numbers, for a person."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as nothing new between two arms."""

    spacing_nats: float
    """u: the coarser of the two arms' precision spacing (:mod:`comparator.precision`)."""
    floor: Floor
    cap_nats: float = DEFAULT_CAP_NATS
    """Largest logprob error that is still drift."""

    @property
    def margin_nats(self) -> float:
        """A margin up to this may flip by itself: max(u, 4σ)."""
        return max(self.spacing_nats, 4 * self.floor.sigma_nats)

    @property
    def tv(self) -> float:
        """A total variation up to this is a neighbour: the larger of A/A's and the precision's."""
        return max(self.floor.tv_q99, TV_PER_NAT * self.spacing_nats)


_NO_ALLOWANCE = Allowance(spacing_nats=0.0, floor=Floor())


def classify(pair: Pair, allowance: Allowance) -> Attribution | None:
    """The class of a finished pair; None for one that was set aside for another reason than rules 1 and 2."""
    if pair.set_aside is SetAside.ENCODING_MISMATCH:
        return _made(ForkClass.ENCODING_MISMATCH, pair.set_aside_reason or "prompt token IDs differ")
    if pair.set_aside is SetAside.CONFIGURATION_MISMATCH:
        return _made(ForkClass.CONFIGURATION_MISMATCH, pair.set_aside_reason or "sampling differs")
    if pair.set_aside is not None:
        return None
    if pair.fork is None:
        return _made(ForkClass.NONE, "token streams equal to the end")
    return classify_fork(pair.fork, pair.left.sampling, allowance)


def classify_fork(fork: Fork, sampling: Sampling, allowance: Allowance) -> Attribution:
    """The class of one fork, from its own step and the error so far.

    Args:
        fork: of a pair whose prompts and sampling are equal.
        sampling: as declared for both arms.
        allowance: what counts as nothing new between these arms.
    """
    left, right = fork.left, fork.right
    if left.token_id is None or right.token_id is None:
        short = left.arm if left.token_id is None else right.arm
        return _made(ForkClass.TRUNCATION, f"{short} ended at token {fork.fork_index}, the other went on")
    if left.margin_nats is None or right.margin_nats is None:
        return _made(ForkClass.UNCLASSIFIABLE, "a side has no two logprobs at the fork")
    greedy = sampling.temperature == 0
    tv = common_tv((left.top_ids, left.top_logprobs), (right.top_ids, right.top_logprobs), sampling)
    margin = min(left.margin_nats, right.margin_nats)
    if tv is not None and tv <= SAME_TV and (not greedy or margin > allowance.margin_nats):
        return _made(
            ForkClass.SAMPLING_STREAM,
            f"the distributions are the same (total variation {tv:.2g}), the choices are not",
        )
    if greedy:
        gap = _tie_gap_nats(left, right)
        if gap is not None and gap <= allowance.margin_nats:
            kind = "exact tie" if gap <= EXACT_TIE_NATS else "near tie"
            return _made(
                ForkClass.TIE_FLIP,
                f"{kind}: both tokens within {gap:.3g} nats of the top on both arms, {_allowed(allowance)}",
            )
    elif tv is not None and tv <= allowance.tv:
        return _made(
            ForkClass.COUPLED_FLIP,
            f"one draw between two distributions {tv:.3g} apart (total variation); {allowance.tv:.3g} may be",
        )
    error = fork.max_error_nats
    inside = right.token_id in left.top_ids and left.token_id in right.top_ids
    if error is not None and error < allowance.cap_nats and (inside or not greedy):
        return _made(
            ForkClass.PRECISION_DRIFT,
            f"largest logprob error {error:.3g} nats at token {fork.max_error_index}, under the cap of "
            f"{allowance.cap_nats:g}",
        )
    return _made(ForkClass.DISTRIBUTION_SHIFT, _why_shift(error, inside, greedy, allowance))


def drawn_by_another(fork: Fork, sampling: Sampling) -> bool:
    """Is a fork of sampled arms one between equal distributions, so that sampler or seed differ (*sampling
    stream*)? Above temperature 0 that rule asks for neither floor nor precision.

    Args:
        fork: of a pair whose prompts and sampling are equal.
        sampling: as declared for both arms, at a temperature above 0.
    """
    return classify_fork(fork, sampling, _NO_ALLOWANCE).fork_class is ForkClass.SAMPLING_STREAM


def _tie_gap_nats(left: ForkSide, right: ForkSide) -> float | None:
    """How far the two chosen tokens stand below the top, at most, on either arm; None if one is not listed.

    With two tokens at the top this is the larger margin; a tie of three or more is covered as well.
    """
    worst = 0.0
    for side in (left, right):
        listed = dict(zip(side.top_ids, side.top_logprobs, strict=True))
        for token_id in (left.token_id, right.token_id):
            if token_id is None or token_id not in listed:
                return None
            # equal first: -inf minus -inf would be NaN
            below = (
                side.top_logprobs[0] - listed[token_id] if side.top_logprobs[0] != listed[token_id] else 0.0
            )
            worst = max(worst, below)
    return worst


def _allowed(allowance: Allowance) -> str:
    return (
        f"up to {allowance.margin_nats:.3g} may flip by itself (precision {allowance.spacing_nats:.3g}, "
        f"4 x noise floor {4 * allowance.floor.sigma_nats:.3g})"
    )


def _why_shift(error: float | None, inside: bool, greedy: bool, allowance: Allowance) -> str:
    if error is None:
        return "the arms' top five share no token at any step up to the fork"
    if error >= allowance.cap_nats:
        return f"largest logprob error {error:.3g} nats, over the cap of {allowance.cap_nats:g}"
    assert greedy
    assert not inside
    return "a chosen token does not stand in the other arm's top-k at all"


def _made(fork_class: ForkClass, reason: str) -> Attribution:
    return Attribution(fork_class=fork_class, reason=reason)

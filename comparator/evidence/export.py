"""Comparisons as lines of JSON: what ``forkgate evidence export`` writes and ``gate evaluate`` reads.

``docs/evidence-format.md`` is the reference. A line is everything that a store knows of one captured
request; a reader needs only its ``comparison`` and its ``exchanges``, so that other tools can write them too.
Pairs are always compared anew from the exchanges: numbers that a line states about them are checked, never
believed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from comparator.compare import compare
from comparator.comparison import Comparison, SampleRef, Score
from comparator.errors import ComparatorError
from comparator.evidence.rows import Shown
from comparator.misfit import misfit_of
from comparator.pair import Pair
from comparator.records import Arm, CaptureId, Exchange

_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOATS = frozenset(
    {
        "frequency_penalty",
        "last_token_s",
        "logit_bias",
        "logprob",
        "max_error_nats",
        "min_p",
        "presence_penalty",
        "received_s",
        "repetition_penalty",
        "started_unix_s",
        "temperature",
        "top_logprobs",
        "top_p",
        "total_s",
        "ttft_s",
        "unix_s",
    }
)
"""Keys under which the three names of numbers that JSON lacks are numbers."""


HEAD_KEYS = frozenset({"bundle", "record", "erasure"})
"""Of lines that are no comparisons (:mod:`comparator.evidence.bundle`)."""


class ExportLineError(ComparatorError):
    """A line that is no comparison. ``line`` is its number, from 1; the message names the place and the way
    out."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    capture_id: str
    rollout: str
    tenant: str
    cluster: str
    unix_s: float
    repeat: bool = False
    timing: bool = False
    sample: SampleRef | None = None


class _Arm(msgspec.Struct, frozen=True, kw_only=True):
    exchange: Exchange
    pruned: bool = False
    hashed: bool = False


class _Pair(msgspec.Struct, frozen=True, kw_only=True):
    left_exchange_id: str
    right_exchange_id: str
    fork_index: int | msgspec.UnsetType | None = msgspec.UNSET
    max_error_nats: float | msgspec.UnsetType | None = msgspec.UNSET
    set_aside: str | msgspec.UnsetType | None = msgspec.UNSET


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a line; other keys are for people and other tools."""

    comparison: _Head
    exchanges: tuple[_Arm, ...]
    pairs: tuple[_Pair, ...] = ()
    scores: tuple[Score, ...] = ()


def export_line(shown: Shown) -> bytes:
    """UTF-8 JSON and a newline. Finite floats read back to the same bits (shortest round-trip form)."""
    return msgspec.json.encode(json_safe(msgspec.to_builtins(shown))) + b"\n"


def json_safe(value: Any) -> Any:
    """``value`` with NaN and the infinities as the strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.

    JSON lacks them; encoders write ``null`` or fail, and either would hide what an engine said.
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value


def read_comparisons(
    lines: Iterable[bytes | str],
    on_pruned: Callable[[int], None] | None = None,
    on_hashed: Callable[[int, Comparison], None] | None = None,
) -> Iterator[Comparison]:
    """The comparisons of exported lines, in their order, each as its gates saw it. Empty lines are skipped.

    Args:
        lines: of a file opened either way.
        on_pruned: called with the number of a line whose steps were pruned from the store before it was
            exported, which is then skipped; without it such a line is an error.
        on_hashed: called with the number of a line that holds keyed hashes in the place of token IDs, and
            with its comparison, before it is given out.

    Raises:
        ExportLineError: a line that is no comparison, contradicts itself, or repeats a capture.
    """
    where: dict[str, int] = {}
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        line = _decoded(number, raw)
        if line is None:
            continue
        if any(arm.pruned for arm in line.exchanges):
            if on_pruned is None:
                raise ExportLineError(
                    number,
                    f"the steps of capture {line.comparison.capture_id} were pruned before it was exported: "
                    "leave the line out, or export earlier (evidence.max_bytes)",
                )
            on_pruned(number)
            continue
        comparison = _comparison(number, line)
        first = where.setdefault(comparison.capture_id, number)
        if first != number:
            raise ExportLineError(
                number,
                f"comparison.capture_id: {comparison.capture_id} stands on line {first} already; one "
                "observation must not count twice",
            )
        if on_hashed is not None and any(arm.hashed for arm in line.exchanges):
            on_hashed(number, comparison)
        yield comparison


def _decoded(number: int, raw: bytes | str) -> _Line | None:
    """None for a line that is no comparison and says so: a bundle's head, records and erasures."""
    try:
        plain = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ExportLineError(number, f"not JSON: {exc}") from exc
    if isinstance(plain, dict) and not HEAD_KEYS.isdisjoint(plain) and "comparison" not in plain:
        return None
    if isinstance(plain, dict) and plain.get("comparison") is None and "capture_id" in plain:
        raise ExportLineError(
            number, f"comparison: missing: capture {plain['capture_id']} was never finished; leave it out"
        )
    try:
        return msgspec.convert(_numbers(plain), _Line)
    except msgspec.ValidationError as exc:
        found = misfit_of(exc)
        if found.missing is not None:
            raise ExportLineError(number, f"{found.field(found.missing)}: missing") from exc
        said = f"{found.path}: {found.lowered}" if found.path else found.text
        raise ExportLineError(number, said) from exc
    except ValueError as exc:
        raise ExportLineError(number, str(exc)) from exc


def _numbers(value: Any, floats: bool = False) -> Any:
    """The names of NaN and the infinities as numbers, where numbers are."""
    if isinstance(value, str):
        return _NAMED.get(value, value) if floats else value
    if isinstance(value, list):
        return [_numbers(item, floats) for item in value]
    if isinstance(value, dict):
        return {key: _numbers(item, floats or key in _FLOATS) for key, item in value.items()}
    return value


def _comparison(number: int, line: _Line) -> Comparison:
    head = line.comparison
    try:
        pairs = tuple(_stated(line) if line.pairs else _matched(line))
    except ComparatorError as exc:
        raise ExportLineError(number, str(exc)) from exc
    if not pairs and (head.sample is None or not line.scores):
        # Only a sample that nobody answered has none: its scores say why.
        raise ExportLineError(
            number, "exchanges: one of the baseline and one of the candidate or control are needed"
        )
    if pairs and pairs[0].capture_id != head.capture_id:
        raise ExportLineError(
            number,
            f"comparison.capture_id: {head.capture_id}, but its exchanges are of {pairs[0].capture_id}",
        )
    return Comparison(
        capture_id=CaptureId(head.capture_id),
        rollout=head.rollout,
        tenant=head.tenant,
        cluster=head.cluster,
        pairs=pairs,
        repeat=head.repeat,
        timing=head.timing,
        sample=head.sample,
        scores=line.scores,
        unix_s=head.unix_s,
    )


def _stated(line: _Line) -> Iterator[Pair]:
    """The pairs that the line names, compared anew and held against what it says of them."""
    exchanges = {arm.exchange.exchange_id: arm.exchange for arm in line.exchanges}
    known = {str(key): value for key, value in exchanges.items()}
    for place, stated in enumerate(line.pairs):
        for side in ("left", "right"):
            wanted = getattr(stated, f"{side}_exchange_id")
            if wanted not in known:
                raise ComparatorError(f"pairs[{place}].{side}_exchange_id: no exchange {wanted} on this line")
        pair = compare(known[stated.left_exchange_id], known[stated.right_exchange_id])
        found = {
            "fork_index": None if pair.fork is None else pair.fork.fork_index,
            "max_error_nats": pair.max_error_nats,
            "set_aside": None if pair.set_aside is None else pair.set_aside.value,
        }
        for name, value in found.items():
            said = getattr(stated, name)
            if said is not msgspec.UNSET and said != value:
                raise ComparatorError(f"pairs[{place}].{name}: {said}, but its exchanges say {value}")
        yield pair


def _matched(line: _Line) -> Iterator[Pair]:
    """Of a line without pairs: by replicate, the baseline with the candidate and then with the control."""
    arms: dict[tuple[int, Arm], Exchange] = {}
    for place, arm in enumerate(line.exchanges):
        exchange = arm.exchange
        if arms.setdefault((exchange.replicate, exchange.arm), exchange) is not exchange:
            raise ComparatorError(
                f"exchanges[{place}].exchange: a second {exchange.arm} of replicate {exchange.replicate}; "
                "say in `pairs` which belong together"
            )
    for replicate in sorted({replicate for replicate, _ in arms}):
        left = arms.get((replicate, Arm.BASELINE))
        if left is None:
            raise ComparatorError(f"exchanges: replicate {replicate} has no baseline to compare with")
        for right in (Arm.CANDIDATE, Arm.CONTROL):
            if (replicate, right) in arms:
                yield compare(left, arms[replicate, right])

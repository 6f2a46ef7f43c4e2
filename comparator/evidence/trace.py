"""To what can a difference be traced? Artifact, environment, schedule, numbers. Pure.

Each line answers *same*, *differs* (which fields, both values) or *unknown* (which fields, and why). A line
says *same* only when every field that it rests on is known on both arms: an unknown is never taken for an
equal.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from comparator.pair import Pair, SetAside
from comparator.records import Exchange, Fact, Sampling

ARTIFACT_FACTS = ("artifact_digest", "template_sha256", "adapter")
ENVIRONMENT_FACTS = ("system_fingerprint", "logprobs_mode", "processor_order")
SCHEDULE_FACTS = ("batch_size", "batch_place", "padding", "attention_mask")

_REQUIRED = {"artifact_digest", "environment_digest", "batch_size", "batch_place"}
"""Without these on both arms the line cannot say *same*; the others only count where somebody told them."""


class Sameness(enum.StrEnum):
    """Answer of one line; *unknown* is never taken for *same*."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One of the four lines."""

    subject: str
    answer: Sameness
    detail: str
    """Fields and values, or reasons; empty for *same*."""

    def line(self) -> str:
        """Subject, answer and, in brackets, why: for a terminal."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.subject:<12} {self.answer}{detail}"


def trace_pair(pair: Pair, *, pruned: bool = False) -> tuple[Trace, Trace, Trace, Trace]:
    """Artifact, environment, schedule, numbers, in this order."""
    left, right = pair.left, pair.right
    return (
        _line("artifact", left, right, ARTIFACT_FACTS, _prompt_difference(pair)),
        _line(
            "environment",
            left,
            right,
            ("environment_digest", *ENVIRONMENT_FACTS),
            [*_plain(left, right, "engine", lambda e: e.engine), *_sampling_difference(left, right)],
        ),
        _line(
            "schedule",
            left,
            right,
            SCHEDULE_FACTS,
            _plain(left, right, "sent as", lambda e: "token IDs" if e.as_tokens else "the request itself"),
        ),
        _numbers(pair, pruned),
    )


def _line(
    subject: str, left: Exchange, right: Exchange, facts: tuple[str, ...], differences: list[str]
) -> Trace:
    unknowns: list[str] = []
    for name in facts:
        mine, other = _fact(left, name), _fact(right, name)
        reasons = (_why_unknown(name, mine), _why_unknown(name, other))
        if reasons[0] is not None and reasons[0] == reasons[1]:
            unknowns.append(f"{name}: {reasons[0]}")
        else:
            unknowns += [
                f"{name} of {exchange.arm}: {reason}"
                for exchange, reason in zip((left, right), reasons, strict=True)
                if reason is not None
            ]
        if mine is not None and other is not None and reasons == (None, None) and mine != other:
            differences.append(f"{name}: {short(mine.value)} / {short(other.value)}")
    if differences:
        return Trace(subject=subject, answer=Sameness.DIFFERS, detail="; ".join(differences))
    if unknowns:
        return Trace(subject=subject, answer=Sameness.UNKNOWN, detail="; ".join(unknowns))
    return Trace(subject=subject, answer=Sameness.SAME, detail="")


def _why_unknown(name: str, fact: Fact | None) -> str | None:
    if fact is None:
        return "not recorded" if name in _REQUIRED else None
    return fact.unknown


def _numbers(pair: Pair, pruned: bool) -> Trace:
    def made(answer: Sameness, detail: str = "") -> Trace:
        return Trace(subject="numbers", answer=answer, detail=detail)

    if pair.set_aside is SetAside.ENCODING_MISMATCH:
        return made(Sameness.UNKNOWN, "the arms were given different prompts")
    error = pair.max_error_nats
    if pair.fork is not None:
        fork = pair.fork
        said = f"fork at output token {fork.fork_index}"
        if fork.max_error_nats is not None:
            said += f", largest logprob error {fork.max_error_nats:.6g} nats at token {fork.max_error_index}"
        return made(Sameness.DIFFERS, said)
    if error:
        return made(Sameness.DIFFERS, f"no fork, largest logprob error {error:.6g} nats")
    if pruned:
        return made(Sameness.UNKNOWN, "no fork; the steps were pruned to make room")
    if error is None:
        return made(Sameness.UNKNOWN, "no step has top-k logprobs on both arms")
    return made(Sameness.SAME)


def _prompt_difference(pair: Pair) -> list[str]:
    if pair.set_aside is SetAside.ENCODING_MISMATCH:
        return [pair.set_aside_reason or "prompt token IDs"]
    return []


def _sampling_difference(left: Exchange, right: Exchange) -> list[str]:
    return [
        f"sampling.{name}: {short(getattr(left.sampling, name))} / {short(getattr(right.sampling, name))}"
        for name in Sampling.__struct_fields__
        if getattr(left.sampling, name) != getattr(right.sampling, name)
    ]


def _plain(left: Exchange, right: Exchange, name: str, value: Callable[[Exchange], str]) -> list[str]:
    mine, other = value(left), value(right)
    return [] if mine == other else [f"{name}: {short(mine)} / {short(other)}"]


def _fact(exchange: Exchange, name: str) -> Fact | None:
    if name == "environment_digest":
        return exchange.environment_digest
    return exchange.facts.get(name)


def short(value: object) -> str:
    """A value for one line of text: at most 48 characters, nothing that moves a cursor."""
    text = printable(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return text if len(text) <= 48 else text[:45] + "..."


def printable(text: str) -> str:
    """``text`` with control and other unprintable characters as escapes: model output is not trusted."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

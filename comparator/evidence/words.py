"""An explanation in words, for a terminal. Pure.

It ends with the four lines of :mod:`comparator.evidence.trace`, whatever stands above them.
"""

from __future__ import annotations

from comparator.evidence.explain import Explanation, Side
from comparator.evidence.trace import printable, short
from comparator.outcomes import FAILURES
from comparator.pair import ForkSide
from comparator.records import Outcome


def as_text(explanation: Explanation, *, top: int = 5) -> str:
    """Lines for a terminal, no colours, nothing unprintable; ``top`` entries of each side's top-k."""
    e = explanation
    lines = [
        f"capture {e.capture_id}",
        f"rollout {short(e.rollout)}, tenant {short(e.tenant) or 'none'}, request {short(e.request_id)}",
        *_circumstances(e),
    ]
    if e.set_aside is not None:
        lines.append(f"set aside: {e.set_aside}: {printable(e.set_aside_reason or '')}")
    if e.pinned is not None:
        lines.append(f"kept: {printable(e.pinned)}")
    if e.pruned:
        lines.append("prompt and steps were pruned to make room; hashes and numbers below remain")
    if e.hashed:
        lines.append(
            "kept as hashes (evidence.store): positions, numbers and lengths are real; tokens are keyed "
            "hashes, equal where tokens were; there are no words to show and nothing can be run again"
        )
    lines += ["", _arm_line(e.left), _arm_line(e.right), _ends_line(e), *_score_lines(e), ""]
    lines += _fork_lines(e, top)
    if e.replay is not None:
        lines += ["", f"run again: {e.replay}"]
    if e.stored_matches_recomputed is False:
        lines += ["", "WARNING: comparing the stored exchanges again gives another result than was stored"]
    lines.append("")
    lines += [trace.line() for trace in e.traces]
    return "\n".join(lines) + "\n"


def _circumstances(e: Explanation) -> list[str]:
    """What sets this pair apart from one of a client's request, asked for the first time."""
    lines = []
    if e.sample is not None:
        s = e.sample
        lines.append(
            f"sample {short(s.sample_id)} ({short(s.category)}) of suite {short(s.suite)}, pass "
            f"{s.passage + 1} of {s.passes}, at the start of {short(s.stage)}"
        )
    if e.replicate:
        lines.append(f"replicate {e.replicate}: the same request with another seed")
    if e.repeat:
        lines.append("repeat: its prompt was met before in this rollout, so it is no new evidence by prompt")
    if e.timing:
        lines.append("timing: drawn beforehand to run without logprobs, so that its times count")
    return lines


def _score_lines(e: Explanation) -> list[str]:
    if not e.scores:
        return []
    said: dict[str, dict[str, str]] = {}
    for score in e.scores:
        value = f"no value ({short(score.error)})" if score.value is None else f"{score.value:g}"
        said.setdefault(score.question, {})[score.arm.value] = value
    both = (
        f"{short(question)} {by_arm.get(e.left.arm, 'not asked')} / {by_arm.get(e.right.arm, 'not asked')}"
        for question, by_arm in said.items()
    )
    return [f"scores {', '.join(both)}"]


def _floor_line(e: Explanation) -> str:
    if e.floor is None:
        return f"  {printable(e.floor_missing or 'no noise floor')}: no noise is excused"
    floor = e.floor
    return (
        f"  noise floor of {floor.n} control pairs: margins move by {floor.sigma_nats:.3g} nats (root mean "
        f"square), total variation up to {floor.tv_q99:.3g} (99 %)"
    )


def _arm_line(side: Side) -> str:
    parts = [f"{side.outcome}" + (f" ({side.finish_reason})" if side.finish_reason else "")]
    parts.append(f"{side.output_tokens} tokens")
    if side.ttft_s is not None:
        parts.append(f"ttft {side.ttft_s:.3f} s")
    if side.tpot_s is not None:
        parts.append(f"tpot {side.tpot_s * 1000:.1f} ms")
    if side.error:
        parts.append(printable(side.error))
    where = f"{short(side.pool)} {short(side.endpoint)} {short(side.engine)}"
    environment = f"environment {short(side.environment_digest)}"
    if side.environment_by is not None:
        environment += f", told by its {short(side.environment_by)}"
    return f"{side.arm:<10} {where}\n{'':<10} {', '.join(parts)}\n{'':<10} {environment}"


def _ends_line(e: Explanation) -> str:
    ends = e.ends
    lengths = (ends.left, ends.left_tokens), (ends.right, ends.right_tokens)
    mine, other = (str(outcome if tokens is None else tokens) for outcome, tokens in lengths)
    line = f"lengths {mine} / {other}, finish {_finish(e.left)} / {_finish(e.right)}"
    outcomes = {ends.left, ends.right}
    if outcomes == {Outcome.COMPLETED}:
        differ = ends.finish_reasons_differ or ends.left_tokens != ends.right_tokens
        return f"{line}: {'differs' if differ else 'same'}"
    if Outcome.COMPLETED in outcomes and outcomes & FAILURES:
        return f"{line}: differs"
    return f"{line}: unknown"  # an arm that was stopped has no end of its own


def _finish(side: Side) -> str:
    if side.outcome != Outcome.COMPLETED or side.finish_reason is None:
        return "unknown"
    stop = f" ({short(side.stop_reason)})" if side.stop_reason is not None else ""
    return short(side.finish_reason) + stop


def _fork_lines(e: Explanation, top: int) -> list[str]:
    if e.fork is None:
        whole = e.left.outcome == e.right.outcome == Outcome.COMPLETED
        lines = [
            "no fork: equal to the end" if e.set_aside is None and whole else "not compared to an end",
        ]
        said_by = "both" if whole else (e.left if e.left.output_tokens else e.right).arm
        if e.before is not None and e.set_aside is None:
            lines.append(f"  {said_by:<10} {printable(e.before)}")
        if e.max_error_nats is not None:
            lines.append(f"  largest logprob error {e.max_error_nats:.6g} nats")
        return lines
    fork = e.fork
    lines = [
        f"fork at output token {fork.fork_index}" + (" (one stream ended)" if fork.proper_prefix else "")
    ]
    if e.before is not None:
        lines.append(f"  both       {printable(e.before)}")
    for side, at in ((e.left, fork.left), (e.right, fork.right)):
        if not e.hashed:
            lines.append(f"  {side.arm:<10} {_continuation(side, at)}")
    lines.append("")
    width = 38
    lines.append(f"  {'':<8} {e.left.arm:<{width}} {e.right.arm}")
    for name, mine, other in (
        ("token", _token(e, fork.left), _token(e, fork.right)),
        ("logprob", _number(fork.left.logprob), _number(fork.right.logprob)),
        ("margin", _number(fork.left.margin_nats, " nats"), _number(fork.right.margin_nats, " nats")),
    ):
        lines.append(f"  {name:<8} {mine:<{width}} {other}")
    for rank in range(min(top, max(len(fork.left.top_ids), len(fork.right.top_ids)))):
        name = "top" if rank == 0 else ""
        mine, other = _entry(e, fork.left, rank), _entry(e, fork.right, rank)
        lines.append(f"  {name:<8} {mine:<{width}} {other}")
    if fork.max_error_nats is None:
        lines.append("  no step up to the fork has top-k logprobs on both arms")
    else:
        lines.append(
            f"  largest logprob error up to the fork {fork.max_error_nats:.6g} nats, "
            f"at token {fork.max_error_index}"
        )
    if e.fork_class is not None:
        lines += ["", f"  {e.fork_class.replace('_', ' ')}: {e.fork_reason}", _floor_line(e)]
    return lines


def _continuation(side: Side, at: ForkSide) -> str:
    if at.token_id is None:
        return "[ended]"
    token = side.at_fork if side.at_fork is not None else (at.text or f"⟨{at.token_id}⟩")
    return f"[{printable(token)}]{printable(side.after or '')}"


def _token(e: Explanation, side: ForkSide) -> str:
    return "ended" if side.token_id is None else _named(e, side.token_id)


def _entry(e: Explanation, side: ForkSide, rank: int) -> str:
    if rank >= len(side.top_ids):
        return ""
    return f"{side.top_logprobs[rank]:10.6f}  {_named(e, side.top_ids[rank])}"


def _named(e: Explanation, token_id: int) -> str:
    if e.hashed:
        return f"#{token_id & 0xFFFFFFFF:08x}"
    text = e.token_texts.get(token_id)
    return str(token_id) if text is None else f'{token_id} "{short(text)}"'


def _number(value: float | None, unit: str = "") -> str:
    return "unknown" if value is None else f"{value:.6f}{unit}"

"""What stands in the way of the levels that only evidence shows: what it shows, and what it lacks. Pure."""

from __future__ import annotations

from comparator.pair import SetAside
from engines.identity.levels import Obstacle, Weight
from forkgate.levels.evidence import ANSWERS, Seen
from policies.policy import Level

_SETTINGS = "start both with the settings that `forkgate settings ENGINE --level token` prints"
_SET_ASIDE = {
    SetAside.ENCODING_MISMATCH: "one prompt became other token IDs: serve one tokenizer and one template",
    SetAside.CONFIGURATION_MISMATCH: "the two were asked with other parameters: see `forkgate evidence show`",
    SetAside.DIGEST_MISMATCH: "not the environment that its pool declares: see `forkgate status`",
    SetAside.INVALID_ANSWER: "an engine broke its own contract: see `forkgate evidence show`",
    SetAside.BASELINE_FAILED: "the baseline did not answer, so that there is nothing to compare with",
}


def no_evidence(*levels: Level) -> Obstacle:
    """None was given."""
    return Obstacle(
        weight=Weight.MISSING,
        levels=tuple(level.value for level in levels),
        what="evidence",
        why="none was given, and nothing is shown without",
        todo="give --evidence: a rollout's STATE_DIR/evidence.db, or a file of `forkgate evidence export`",
    )


def no_verdicts(*, of_others: bool) -> Obstacle:
    """Of evidence that no gate has judged, or not of these two alone."""
    return _missing(
        Level.STATISTICAL,
        "verdicts",
        "the rollout's verdicts rest on answers of other environments, too"
        if of_others
        else "no gate has judged these two",
        "give --policy NAME to have its gates judge this evidence, or the store of a rollout",
    )


def nothing_counts(level: Level) -> Obstacle:
    """Of evidence that is about others."""
    return _missing(
        level,
        "evidence",
        "no comparison of these two environments is in it that counts",
        "compare them in a rollout: its checks, suites or live traffic",
    )


def more_prompts(told: str, prompts: int, enough: int, at_most: float) -> Obstacle:
    """Equal as far as it goes, which is not far enough."""
    return _missing(
        Level.TOKEN,
        "evidence",
        f"{told}; {percent(at_most)} is asked",
        f"compare {enough - prompts:,} further prompts ({enough:,} in all)",
    )


def controls(told: str) -> Obstacle:
    """An environment that does not repeat itself."""
    return Obstacle(
        weight=Weight.SEEN,
        levels=(Level.TOKEN.value,),
        what="controls",
        why=f"{told}: where an environment does not repeat itself, equal answers of the other are luck",
        todo=_SETTINGS,
    )


def forks(seen: Seen) -> Obstacle:
    """The two gave other tokens."""
    within = seen.within
    todo = "`forkgate evidence show CAPTURE` has both sides of it"
    if within.forked:
        todo = f"{within.forked} of {within.n} prompts forked within one environment, too: first {_SETTINGS}"
    return Obstacle(
        weight=Weight.SEEN, levels=(Level.TOKEN.value,), what="forks", why=forked(seen), todo=todo
    )


def forked(seen: Seen) -> str:
    """How many, where the first, and of what kinds."""
    told = f"{seen.between.forked:,} of {seen.between.n:,} prompts forked"
    first = seen.first
    if first is not None:
        kind = "" if first.fork_class is None else f" ({_plain(first.fork_class)})"
        told += f"; the first at output token {first.fork_index} of capture {first.capture_id}{kind}"
    if len(seen.classes) > 1:
        kinds = (f"{count:,} {_plain(name)}" for name, count in sorted(seen.classes.items()))
        told += f"; of all forks {', '.join(kinds)}"
    return told


def gate(name: str, reason: str, weight: Weight) -> Obstacle:
    """A gate that failed, or does not pass yet."""
    return Obstacle(
        weight=weight,
        levels=(Level.STATISTICAL.value,),
        what=f"gate {name}",
        why=reason,
        todo="`forkgate policy lint POLICY` says what it needs" if weight is Weight.MISSING else "",
    )


def asks_for_more(name: str) -> Obstacle:
    """A gate of the token level failed, which decides nothing at this one."""
    return _missing(
        Level.STATISTICAL,
        f"gate {name}",
        "it failed, and asks for equal tokens: of distributions that says nothing",
        "give --policy NAME, one of this level (`open-answers`, `sampling`)",
    )


def left_out(seen: Seen) -> list[Obstacle]:
    """What was compared and does not count, and why: nobody should look for it in vain."""
    told: list[tuple[str, str, str]] = []
    if seen.unproved:
        why = f"{seen.unproved:,} pairs hold an answer that its engine did not sign with an environment"
        todo = "run forkgate's plugin in the engine; or say that you know who answered: --vouch answers"
        told.append((ANSWERS, why, todo))
    for digest, count in sorted(seen.foreign.items()):
        why = f"{count:,} pairs were answered by {digest}"
        if digest == "swapped":
            why = f"{count:,} pairs are of one of the two alone, and no control"
        told.append(
            ("other environments", why, "give the record of what answered, or compare these two anew")
        )
    told += [
        (_plain(name), f"{count:,} pairs were set aside", _SET_ASIDE[SetAside(name)])
        for name, count in sorted(seen.set_aside.items())
    ]
    if seen.unfinished:
        why = f"{seen.unfinished:,} pairs were equal as far as they went: an answer was empty or cut short"
        told.append(("unfinished", why, "see `forkgate evidence list`"))
    if seen.pruned:
        why = f"{seen.pruned:,} comparisons had lost their steps to newer ones"
        told.append(("pruned", why, "raise evidence.max_bytes, or export earlier"))
    return [_missing(Level.TOKEN, *one) for one in told]


def listed(names: list[str]) -> str:
    """The first few, and how many more."""
    few = ", ".join(names[:3])
    return few if len(names) <= 3 else f"{few} and {len(names) - 3} more"


def percent(share: float) -> str:
    """Two digits of it."""
    return f"{100 * share:.2g} %"


def _missing(level: Level, what: str, why: str, todo: str) -> Obstacle:
    return Obstacle(weight=Weight.MISSING, levels=(level.value,), what=what, why=why, todo=todo)


def _plain(name: str) -> str:
    return name.replace("_", " ")

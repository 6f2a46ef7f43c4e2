"""What a check found, for a person, a program and a rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from comparator.floor import Floor
from comparator.pair import ForkSide, Pair
from comparator.precision import declared_precision, spacing_nats
from comparator.records import Exchange, Outcome
from comparator.taxonomy import Allowance, classify
from policies.policy import Level
from policies.rollout import CheckKind
from policies.verdict import Answer


class ForkFound(msgspec.Struct, frozen=True, kw_only=True):
    """One fork of one pair."""

    run: int
    """The run that forked from the first one, counted from 1: 2 is the first repetition. 1 where two first
    runs are compared: in a quick check, and between two endpoints."""
    left: str
    """Endpoint."""
    right: str
    fork_index: int
    fork_class: str
    reason: str
    left_token: str
    right_token: str
    left_margin_nats: float | None
    right_margin_nats: float | None
    max_error_nats: float | None


class PromptFound(msgspec.Struct, frozen=True, kw_only=True):
    """What one prompt came to."""

    prompt: str
    category: str
    pairs: int
    """Comparisons made with it, those set aside included."""
    equal: int
    """Of these, token streams that are equal to the end."""
    forks: tuple[ForkFound, ...] = ()
    set_aside: tuple[str, ...] = ()
    """``kind: reason`` of every pair that cannot be compared."""
    failed: tuple[str, ...] = ()
    """``arm on endpoint: outcome: error`` of every answer that did not come."""
    said: str = ""
    """How the baseline's first answer reads."""
    silent: bool = False
    """No answer of the baseline has anything to read in it."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """A check's answer and all that it rests on."""

    check: CheckKind
    level: Level
    """The level that it was judged at."""
    answer: Answer
    """PASS goes on; FAIL and ERROR (could not measure) hold, and so does INCONCLUSIVE."""
    reason: str
    """One sentence for a person, with what to do."""
    pools: tuple[str, ...]
    endpoints: tuple[str, ...]
    prompts: tuple[PromptFound, ...] = ()
    pairs: int = 0
    equal: int = 0
    classes: dict[str, int] = {}
    """Forks by class."""
    floor: Floor = Floor()
    """What the baseline differs from itself by: found by the self check, given to the quick check."""
    spacing_nats: float = 0.0
    """u of the fork taxonomy, declared or seen."""
    notes: tuple[str, ...] = ()
    """What else a reader must know: how it was asked, who shared the machine."""
    seconds: float = 0.0

    @property
    def facts(self) -> dict[str, str]:
        """The numbers, in words, for a log line or a status page."""
        told = {"pairs": str(self.pairs), "equal": str(self.equal), "level": self.level.value}
        if self.classes:
            told["forks"] = ", ".join(f"{count} {name}" for name, count in sorted(self.classes.items()))
        if self.check is CheckKind.SELF_CHECK and self.pairs:
            told["floor"] = f"sigma {self.floor.sigma_nats:.3g} nats, total variation {self.floor.tv_q99:.3g}"
        told["seconds"] = f"{self.seconds:.1f}"
        return told


def spacing_of(exchanges: Iterable[Exchange]) -> float:
    """u: the coarsest spacing of these exchanges, each side's as declared (``dtype``), else as its logprobs
    show it, taken over all of a side's steps."""
    sides: dict[tuple[str, str | None], list[Exchange]] = {}
    for one in exchanges:
        sides.setdefault((one.pool, declared_precision(one)), []).append(one)
    return max(
        (
            spacing_nats(name, (step for one in side for step in one.steps))
            for (_, name), side in sides.items()
        ),
        default=0.0,
    )


def found_of(
    prompt: str,
    category: str,
    pairs: Sequence[tuple[int, Pair]],
    failed: Sequence[str],
    allowance: Allowance,
    said: str,
) -> PromptFound:
    """One prompt's pairs, each with its run, as findings."""
    forks: list[ForkFound] = []
    set_aside: list[str] = []
    equal = 0
    for run, pair in pairs:
        if pair.set_aside is not None:
            set_aside.append(f"{pair.set_aside.value}: {pair.set_aside_reason}")
        elif pair.fork is None:
            equal += pair.right.outcome is Outcome.COMPLETED
        else:
            attribution = classify(pair, allowance)
            assert attribution is not None
            forks.append(
                ForkFound(
                    run=run,
                    left=pair.left.endpoint,
                    right=pair.right.endpoint,
                    fork_index=pair.fork.fork_index,
                    fork_class=attribution.fork_class.value,
                    reason=attribution.reason,
                    left_token=_token(pair.fork.left),
                    right_token=_token(pair.fork.right),
                    left_margin_nats=pair.fork.left.margin_nats,
                    right_margin_nats=pair.fork.right.margin_nats,
                    max_error_nats=pair.fork.max_error_nats,
                )
            )
    return PromptFound(
        prompt=prompt,
        category=category,
        pairs=len(pairs),
        equal=equal,
        forks=tuple(forks),
        set_aside=tuple(set_aside),
        failed=tuple(failed),
        said=said,
    )


def classes_of(prompts: Iterable[PromptFound]) -> dict[str, int]:
    """Forks by class."""
    return dict(Counter(fork.fork_class for prompt in prompts for fork in prompt.forks))


def first(prompts: Iterable[PromptFound], part: str) -> str | None:
    """The first of every prompt's ``failed`` or ``set_aside``, with the prompt's name."""
    for prompt in prompts:
        for text in getattr(prompt, part):
            return f"{prompt.prompt}: {text}"
    return None


def text_of(exchange: Exchange) -> str:
    """The answer as it reads; IDs in brackets where the engine gave no text."""
    return "".join(step.text if step.text is not None else f"⟨{step.token_id}⟩" for step in exchange.steps)


def is_silent(exchanges: Sequence[Exchange]) -> bool:
    """Whether these answers came, and hold nothing that could be read. Where an engine gives no text that is
    unknown, and they are not."""
    came = [one for one in exchanges if one.outcome is Outcome.COMPLETED]
    return bool(came) and all(
        step.text is not None and not step.text.strip() for one in came for step in one.steps
    )


def silence(pool: str, prompts: Sequence[PromptFound]) -> str | None:
    """What to say of a pool that answers every prompt with nothing; None of any other."""
    if not prompts or not all(one.silent for one in prompts):
        return None
    return (
        f"{pool} answers all {len(prompts)} prompts with nothing, and nothing is equal to nothing: look at "
        "its stop tokens, its chat template and what it was asked"
    )


def _token(side: ForkSide) -> str:
    if side.token_id is None:
        return "[ended]"
    return side.text if side.text else f"⟨{side.token_id}⟩"

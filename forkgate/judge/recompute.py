"""Every stored verdict of a rollout, computed again from its journal. Reads the file alone, no judge.

Theory of operation. The journal holds what the rollout's gates folded, in order, numbered, and snapshots of
the whole state in between. The replay steps the same pure state machine with the same events under the plan
stored with the first snapshot, policy included, and holds each verdict that comes of it against the stored
one, to the last bit. A snapshot on the way must be the state that the replay arrived at.

Where the journal misses something (a store that failed, a kill, room that was made) the state is unknown
until the next snapshot; the verdicts of that stretch are *not recomputed*, which is told and never counts as
equal. Where a stored comparison contradicts itself, that is a *problem*, as a verdict that differs is.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import msgspec

from comparator.comparison import Comparison
from comparator.evidence import (
    EvidenceDamaged,
    EvidenceHashed,
    EvidenceNotFound,
    EvidencePruned,
    EvidenceReader,
    JournalRow,
    VerdictRow,
)
from comparator.evidence.journal import ComparisonRef, ForkRef, JournalError, decode_items, unpack
from comparator.evidence.retention import VERDICT_ROWS
from comparator.evidence.rows import LOST, OBSERVED, STATE
from forkgate.judge.journal import event_of, state_of, whole
from policies.errors import PolicyError
from policies.gates import drawn
from policies.gates.base import Evidence
from policies.gates.by_token import by_token
from policies.rollout import Event, Latch, Log, Observed, RolloutState, Stage, step


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One stored verdict, or one that should be."""

    gate: str
    answer: str
    evidence: int
    """Number of the item of evidence after which it was given."""
    unix_s: float
    equal: bool | None
    """None: it could not be computed again."""
    why: str = ""
    """What differs, both values; or why it could not be."""


class Recomputed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay of one rollout's journal came to."""

    rollout: str
    policy_digests: tuple[str, ...]
    """Of the plans that the replay ran under, in order."""
    events: int
    """Replayed."""
    evidence: int
    """Items of evidence folded in them."""
    verdicts: tuple[Checked, ...]
    problems: tuple[str, ...]
    """Stored values that contradict each other."""
    told: tuple[str, ...]
    """Gaps, and where the replay went on behind them."""

    @property
    def equal(self) -> int:
        """Verdicts that came out the same, bit for bit."""
        return sum(one.equal is True for one in self.verdicts)

    @property
    def differing(self) -> int:
        """Verdicts that did not."""
        return sum(one.equal is False for one in self.verdicts)

    @property
    def unknown(self) -> int:
        """Verdicts that could not be computed again."""
        return sum(one.equal is None for one in self.verdicts)


def recompute(reader: EvidenceReader, rollout: str) -> Recomputed:
    """Replay the journal of one rollout, as far as it reached when this was called.

    Raises:
        EvidenceError: the file cannot be read.
    """
    return _Replay(reader, rollout).run()


_Key = tuple[int, str, float]


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the replay says of one verdict."""

    log: Log
    policy_digest: str


class _Replay:
    """One walk through a journal."""

    def __init__(self, reader: EvidenceReader, rollout: str) -> None:
        self._reader = reader
        self._rollout = rollout
        self._plans = {plan.digest: plan for plan in reader.plans(rollout)}
        self._state: RolloutState | None = None
        self._unknown_since: str | None = None
        """Why the state is not known."""
        self._given: dict[_Key, list[_Given]] = {}
        self._stretches: list[tuple[int, int, float]] = []
        """Evidence and time of each replayed event."""
        self._digests: list[str] = []
        self._problems: list[str] = []
        self._told: list[str] = []
        self._events = self._items = 0

    def run(self) -> Recomputed:
        last_id, stored = self._reader.verdicts_until_now(self._rollout)
        for row in self._reader.journal(self._rollout, last_id):
            self._take(row)
        if self._state is None and self._unknown_since is not None:
            self._told.append(f"{self._unknown_since}; no state is stored behind it")
        return Recomputed(
            rollout=self._rollout,
            policy_digests=tuple(self._digests),
            events=self._events,
            evidence=self._items,
            verdicts=tuple(self._verdicts(stored)),
            problems=tuple(self._problems),
            told=tuple(self._told),
        )

    # -- the walk -----------------------------------------------------------------------------------------

    def _take(self, row: JournalRow) -> None:
        if row.kind == STATE:
            self._snapshot(row)
            return
        if self._state is None:
            if self._unknown_since is None:
                self._lose(f"the journal begins at evidence {row.before}; what was before it was pruned")
            return
        if row.before != self._state.evidence:
            self._lose(f"evidence {self._state.evidence + 1}-{row.before} is missing from the journal")
            return
        if row.kind == LOST:
            self._lose(f"evidence {row.before + 1}-{row.after} could not be kept")
            return
        try:
            event = self._event(row)
        except EvidenceDamaged as error:
            self._problems.append(str(error))
            self._lose(f"evidence {row.before + 1}-{row.after} contradicts itself")
        except (EvidencePruned, EvidenceNotFound, EvidenceHashed) as error:
            self._lose(f"evidence {row.before + 1}-{row.after} is gone: {error}")
        except JournalError as error:
            self._problems.append(f"journal entry {row.id}: {error}")
            self._lose(f"evidence {row.before + 1}-{row.after} cannot be read")
        else:
            self._step(self._state, row, event)

    def _step(self, state: RolloutState, row: JournalRow, event: Event) -> None:
        after, effects = step(state, event)
        if after.evidence != row.after:
            self._problems.append(
                f"journal entry {row.id}: evidence stood at {row.after} after it, the replay is at "
                f"{after.evidence}"
            )
            self._lose(f"the event after evidence {row.before} is not what it was")
            return
        # Evidence that came while it was rolled back is counted there and not kept here.
        self._state = msgspec.structs.replace(after, sequence=row.sequence)
        self._events += 1
        self._items += after.evidence - state.evidence
        self._stretches.append((row.before, row.after, row.unix_s))
        for effect in effects:
            if isinstance(effect, Log) and effect.verdict is not None:
                key = (effect.evidence, effect.verdict.gate, row.unix_s)
                given = _Given(log=effect, policy_digest=after.plan.policy.digest)
                self._given.setdefault(key, []).append(given)

    def _event(self, row: JournalRow) -> Event:
        if row.kind != OBSERVED:
            return event_of(row.kind, unpack(row.body))
        return Observed(items=tuple(self._evidence(row)), unix_s=row.unix_s)

    def _evidence(self, row: JournalRow) -> Iterator[Evidence]:
        for part in decode_items(row.body):
            if isinstance(part, ComparisonRef):
                comparison = self._reader.comparison(part.capture_id)
                self._check_kept(comparison)
                yield comparison
            elif isinstance(part, ForkRef):
                yield self._reader.fork_seen(part.capture_id, part.left_arm, part.right_arm, part.replicate)
            else:
                yield part

    def _check_kept(self, comparison: Comparison) -> None:
        """Raises EvidenceHashed where a gate read more of it than keyed hashes still say."""
        if self._state is None or not self._reader.hashed(comparison.capture_id):
            return
        by_id = by_token(self._state.plan.policy.gates)
        kept = f"capture {comparison.capture_id} is kept as hashes (evidence.store), and"
        if by_id and drawn.reads(comparison):
            raise EvidenceHashed(self._reader.path, f"{kept} {' and '.join(by_id)} read token IDs")
        if comparison.sample is not None and _quoted(comparison):
            raise EvidenceHashed(
                self._reader.path, f"{kept} what an engine or a scorer said of it, which gates quote, is not"
            )

    def _snapshot(self, row: JournalRow) -> None:
        stored = self._stored_state(row)
        if stored is None:
            return
        before, self._state = self._state, stored
        digest = stored.plan.policy.digest
        if not self._digests or self._digests[-1] != digest:
            self._digests.append(digest)
        place = f"evidence {row.after}"
        if before is None:
            if self._unknown_since is not None:
                self._told.append(f"{self._unknown_since}; gone on from the state stored at {place}")
            elif row.after:
                self._told.append(f"the journal begins with the state stored at {place}")
            self._unknown_since = None
        elif before.plan != stored.plan and _go_on(before, stored):
            self._told.append(f"gone on under another configuration after evidence {before.evidence}")
        elif before.plan != stored.plan or (row.after == 0 and before.evidence):
            self._told.append(f"begun anew after evidence {before.evidence}")
        elif row.before != before.evidence:
            self._told.append(
                f"evidence stood at {before.evidence} and then, in another judge's life, at {row.before}: "
                "what lies between was not kept; gone on from the state stored there"
            )
        elif not _same(before, stored):
            if stored.latch is not None and before.latch is None:
                self._told.append(f"rolled back from outside at {place}: a latch that an earlier judge left")
            elif stored.sent_home.keys() - before.sent_home.keys():
                self._told.append(f"tenants sent home at {place}: latches that an earlier judge left")
            elif stored.stage is Stage.PROMOTED and before.stage is not Stage.PROMOTED:
                self._told.append(f"promoted at {place}: an earlier judge had moved home on disk")
            elif row.sequence == 0:
                self._told.append("begun anew before any evidence: a judge ended before its state was kept")
            else:
                self._problems.append(
                    f"journal entry {row.id}: the state stored at {place} is not the one that the replay "
                    "arrived at"
                )

    def _stored_state(self, row: JournalRow) -> RolloutState | None:
        plan = self._plans.get(row.plan_digest or "")
        try:
            if plan is None:
                raise JournalError(f"no plan {row.plan_digest} is stored")
            return state_of(unpack(row.body), plan.body)
        except (JournalError, PolicyError, ValueError) as error:
            self._lose(f"the state stored at evidence {row.after} cannot be read: {error}")
            return None

    def _lose(self, why: str) -> None:
        self._state = None
        self._unknown_since = why

    # -- stored against given -----------------------------------------------------------------------------

    def _verdicts(self, stored: tuple[VerdictRow, ...]) -> Iterator[Checked]:
        for row in stored:
            given = self._given.get((row.evidence_sequence, row.gate, row.unix_s))
            if given:
                yield _held_against(row, given.pop(0))
            else:
                yield self._not_given(row)
        trimmed = len(stored) >= VERDICT_ROWS
        for (evidence, gate, unix_s), rest in self._given.items():
            for one in rest:
                assert one.log.verdict is not None
                yield Checked(
                    gate=gate,
                    answer=one.log.verdict.answer.value,
                    evidence=evidence,
                    unix_s=unix_s,
                    equal=None if trimmed else False,
                    why="the replay gives it, and it is not stored",
                )

    def _not_given(self, row: VerdictRow) -> Checked:
        number = row.evidence_sequence
        replayed = any(
            before < number <= after and unix_s == row.unix_s for before, after, unix_s in self._stretches
        )
        if replayed:
            equal, why = False, "it is stored, and the replay gives none here"
        elif not row.verdict:
            equal, why = None, "an older forkgate stored it, without a journal"
        else:
            equal, why = None, "its evidence is not in the journal any more, or cannot be read"
        return Checked(
            gate=row.gate, answer=row.answer, evidence=number, unix_s=row.unix_s, equal=equal, why=why
        )


def _held_against(row: VerdictRow, given: _Given) -> Checked:
    verdict = given.log.verdict
    assert verdict is not None
    pairs = {
        "policy": (row.policy_digest, given.policy_digest),
        **{
            name: (getattr(row, name), _as_stored(getattr(verdict, name)))
            for name in verdict.__struct_fields__
            if name in row.__struct_fields__
        },
        "state": (row.state, msgspec.json.encode(given.log.gate_state).decode()),
        "verdict": (row.verdict, whole(verdict)),
    }
    differing = [
        f"{name} {mine!r}, replayed {other!r}" for name, (mine, other) in pairs.items() if mine != other
    ]
    return Checked(
        gate=row.gate,
        answer=row.answer,
        evidence=row.evidence_sequence,
        unix_s=row.unix_s,
        equal=not differing,
        why="; ".join(differing),
    )


def _as_stored(value: object) -> object:
    """As SQLite gives it back: it has no NaN. The whole verdict beside it keeps every bit."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, tuple) and any(part != part for part in value):
        return None
    return value


def _quoted(comparison: Comparison) -> bool:
    """Whether words of others belong to it."""
    return any(score.error is not None for score in comparison.scores) or any(
        pair.set_aside is not None or pair.left.error is not None or pair.right.error is not None
        for pair in comparison.pairs
    )


def _go_on(before: RolloutState, after: RolloutState) -> bool:
    """The same gates go on: nothing that is frozen was changed."""
    mine, other = msgspec.to_builtins(before.gates), msgspec.to_builtins(after.gates)
    return before.plan.policy.digest == after.plan.policy.digest and _alike(mine, other)


def _same(mine: RolloutState, other: RolloutState) -> bool:
    return _alike(_comparable(mine), _comparable(other))


def _comparable(state: RolloutState) -> object:
    """Without what is no event's: whether latches reached the disk, and how many events were ignored."""
    state = msgspec.structs.replace(
        state,
        sequence=0,
        latch=None if state.latch is None else _written(state.latch),
        sent_home={tenant: _written(latch) for tenant, latch in state.sent_home.items()},
    )
    return msgspec.to_builtins(state)


def _written(latch: Latch) -> Latch:
    return msgspec.structs.replace(latch, durable=True)


def _alike(mine: object, other: object) -> bool:
    """Equal plain values, floats by their bits: a NaN is what it was, and -0 is not 0."""
    if isinstance(mine, dict) and isinstance(other, dict):
        return mine.keys() == other.keys() and all(_alike(value, other[key]) for key, value in mine.items())
    if isinstance(mine, list) and isinstance(other, list):
        return len(mine) == len(other) and all(map(_alike, mine, other))
    if isinstance(mine, float) and isinstance(other, float):
        return struct.pack("<d", mine) == struct.pack("<d", other)
    return mine == other


__all__ = ["Checked", "Recomputed", "recompute"]

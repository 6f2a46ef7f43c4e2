"""What happens to a rollout, and what the judge has to do about it.

A clock is read nowhere: every event carries ``unix_s``, the judge's clock as it was taken in, and time passes
for a rollout by :class:`Tick` alone. Every event can be encoded by msgspec and is kept under its class's
name, so that a journal replays it.
"""

from __future__ import annotations

import msgspec

from policies.gates import GateState
from policies.gates.base import Evidence
from policies.rollout.plan import CheckKind, RolloutPlan
from policies.rollout.values import CheckAnswer, Latch
from policies.routes import PoolName, RolloutName, TenantName
from policies.verdict import Verdict

# --- events: what was seen


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence, in the order in which it came."""

    items: tuple[Evidence, ...]
    unix_s: float


class CheckDone(msgspec.Struct, frozen=True, kw_only=True):
    """A check that :class:`RunCheck` asked for has ended."""

    kind: CheckKind
    answer: CheckAnswer
    summary: str
    facts: dict[str, str] = {}
    unix_s: float


class SuiteDone(msgspec.Struct, frozen=True, kw_only=True):
    """A suite that :class:`RunSuites` asked for has been asked to its end; its answers came as evidence."""

    suite: str
    look: str
    """Of the order that it answers (:attr:`RunSuites.look`)."""
    summary: str
    whole: bool = True
    """Every sample was asked in every pass."""
    unix_s: float


class EnvironmentSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of a compared pool has said what it is: when it was first probed, and whenever it says
    something else than before."""

    pool: PoolName
    endpoint: str
    facts: dict[str, str]
    """Version, model, precision, flags, by name, ``environment_digest`` among them; what is not known is left
    out."""
    unix_s: float


class PoolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A pool was probed for what a rollback would need of it: that it answers, and has room.

    One that is not ready stops every step out of a stage (``RolloutPlan.pool_proof``) and latches nothing.
    One that tells nothing new is no event: the state stays as it is, uncounted.
    """

    pool: PoolName
    ready: bool
    reason: str
    """Why not, with numbers; for people too where it is ready."""
    unix_s: float


class HomeMoved(msgspec.Struct, frozen=True, kw_only=True):
    """Another rollout has moved home, or put it back. To be told to every rollout but the one that did."""

    by: RolloutName | None
    """Whose candidate is home now; None: home is where the configuration says."""
    unix_s: float


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Time has passed; sent about once a second. Leaves a stage whose conditions hold by now and that no
    person has to leave. One that changes nothing is no event: the state stays as it is, uncounted."""

    unix_s: float


class ClockStepped(msgspec.Struct, frozen=True, kw_only=True):
    """The clock behind ``unix_s`` was set, told by one that cannot be. The time that a stage has lasted stays
    what it was. A judge that misses it loses no safety where the clock went back: the stage lasts longer."""

    by_s: float
    """Ahead, or back where it is negative."""
    unix_s: float
    """After the step."""


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration was read again."""

    plan: RolloutPlan
    unix_s: float


# --- events: what a person did


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """A person's word, as every one of them is told."""

    who: str
    why: str
    unix_s: float


class Start(Spoken, frozen=True, kw_only=True):
    """Begin a rollout that is pending, or one that was aborted, from nothing."""


class Pause(Spoken, frozen=True, kw_only=True):
    """Traffic, copies and gates go on; nothing advances until a resume, and a breach still rolls back."""


class Resume(Spoken, frozen=True, kw_only=True):
    """The end of a pause; evidence counts on."""


class Advance(Spoken, frozen=True, kw_only=True):
    """Leave the stage for the next. Declined, with what is missing, unless every condition holds."""

    look: str | None = None
    """The stage that is to be left, as :attr:`RolloutState.look` told the person: said twice, it moves once.
    None: whatever it stands in."""


class RollBackNow(Spoken, frozen=True, kw_only=True):
    """Home at once, latched like a breach. ``tenant``: only that one's traffic."""

    tenant: TenantName | None = None


class Abort(Spoken, frozen=True, kw_only=True):
    """End the rollout: all traffic home, no latch. It begins again by :class:`Start` alone."""


class Lift(Spoken, frozen=True, kw_only=True):
    """A person lets a rolled-back (or held) rollout start again; or, with ``tenant``, one tenant that was
    sent home."""

    tenant: TenantName | None = None


Event = (
    Observed
    | CheckDone
    | SuiteDone
    | EnvironmentSeen
    | PoolSeen
    | HomeMoved
    | Tick
    | ClockStepped
    | Configured
    | Start
    | Pause
    | Resume
    | Advance
    | RollBackNow
    | Abort
    | Lift
)

# --- effects


class RunCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Make this check and answer with :class:`CheckDone`. One of the same kind that still runs is ended."""

    rollout: RolloutName
    kind: CheckKind


class RunSuites(msgspec.Struct, frozen=True, kw_only=True):
    """Ask these suites through the mirror, and answer each with :class:`SuiteDone`."""

    rollout: RolloutName
    look: str
    """Of which stage, as :attr:`RolloutState.look` tells it; samples carry it, and no two stages that are
    judged by the same gates have one of the same name."""
    suites: tuple[str, ...]


class RollBack(msgspec.Struct, frozen=True, kw_only=True):
    """Write the latch, then flip: publish a table without this candidate and stop its shadows."""

    latch: Latch


class SendHome(msgspec.Struct, frozen=True, kw_only=True):
    """The same for one tenant, ``latch.tenant``: write the latch, then publish a table in which it is home.
    The rollout goes on."""

    latch: Latch


class MoveHome(msgspec.Struct, frozen=True, kw_only=True):
    """Home is another pool now: keep the state on disk before the table that follows is published, and tell
    every other rollout (:class:`HomeMoved`). After a rollback it only tells, the flip does not wait."""

    rollout: RolloutName
    pool: PoolName
    by: RolloutName | None
    """For :class:`HomeMoved`: this rollout at its promotion, None where it goes back."""


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """The route table must be made again, under a higher epoch."""

    rollout: RolloutName
    cause: str


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing advances until a person has looked; traffic stays."""

    rollout: RolloutName
    reason: str
    verdict: Verdict | None = None
    choice: tuple[str, ...] = ()


class Restarted(msgspec.Struct, frozen=True, kw_only=True):
    """Every gate is at its initial state again: what was folded before counts no more."""

    rollout: RolloutName
    evidence: int
    """Items folded until then."""
    cause: str


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """No more checks, suites or copies: whatever of this rollout is under way is ended."""

    rollout: RolloutName
    cause: str


class Unlatch(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the latch from its file; with ``tenant`` that tenant's, else the rollout's."""

    rollout: RolloutName
    who: str
    why: str
    tenant: TenantName | None = None


class Declined(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for was not done, and nothing changed."""

    rollout: RolloutName
    what: str
    """The event's name."""
    reasons: tuple[str, ...]
    """What stands in its way, a sentence each."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout went to another stage or step: for logs, notifications and hooks. Nothing is to be done."""

    rollout: RolloutName
    before: str
    """As :attr:`RolloutState.place` tells it: ``shadow``, ``canary step 2 of 3``."""
    after: str
    cause: str


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A gate's answer changed, or something was refused: keep it, and tell whoever listens."""

    rollout: RolloutName
    message: str
    verdict: Verdict | None = None
    gate_state: GateState | None = None
    """The state that the verdict follows from."""
    evidence: int = 0
    """Number of the item of evidence after which it was given."""


Effect = (
    RunCheck
    | RunSuites
    | RollBack
    | SendHome
    | MoveHome
    | Publish
    | Hold
    | Restarted
    | Stopped
    | Unlatch
    | Declined
    | Moved
    | Log
)

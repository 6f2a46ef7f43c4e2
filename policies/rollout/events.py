"""What happens to a rollout, and what the judge has to do about it."""

from __future__ import annotations

import msgspec

from policies.gates import GateState
from policies.gates.base import Evidence
from policies.rollout.values import CheckAnswer, CheckKind, Latch, RolloutPlan, Stage
from policies.routes import PoolName, RolloutName
from policies.verdict import Verdict

# --- events


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
    stage: Stage
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
    """Version, model, precision, flags, by name; what is not known is left out."""
    unix_s: float


class Lift(msgspec.Struct, frozen=True, kw_only=True):
    """A person lets a rolled-back (or held) rollout start again."""

    who: str
    why: str
    unix_s: float


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration was read again."""

    plan: RolloutPlan
    unix_s: float


Event = Observed | CheckDone | SuiteDone | EnvironmentSeen | Lift | Configured

# --- effects


class RunCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Make this check and answer with :class:`CheckDone`. One of the same kind that still runs is ended."""

    rollout: RolloutName
    kind: CheckKind


class RunSuites(msgspec.Struct, frozen=True, kw_only=True):
    """Ask these suites through the mirror, and answer each with :class:`SuiteDone`."""

    rollout: RolloutName
    stage: Stage
    suites: tuple[str, ...]


class RollBack(msgspec.Struct, frozen=True, kw_only=True):
    """Write the latch, then flip: publish a table without this candidate and stop its shadows."""

    latch: Latch


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


class Unlatch(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the latch from its file."""

    rollout: RolloutName
    who: str
    why: str


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A gate's answer changed, or something was refused: keep it, and tell whoever listens."""

    rollout: RolloutName
    message: str
    verdict: Verdict | None = None
    gate_state: GateState | None = None
    """The state that the verdict follows from."""
    evidence: int = 0
    """Number of the item of evidence after which it was given."""


Effect = RunCheck | RunSuites | RollBack | Publish | Hold | Restarted | Unlatch | Log

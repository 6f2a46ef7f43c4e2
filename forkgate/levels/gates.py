"""What a policy's gates say of two environments: kept in a store or bundle, or computed from comparisons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.misfit import misfit_of
from policies.gates import KINDS
from policies.gates.token_equality import TokenEquality
from policies.levels import ask, levels_of
from policies.policy import Policy
from policies.verdict import Answer


class GateSaid(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's newest answer."""

    gate: str
    answer: Answer
    n: int
    reason: str
    performance: bool = False
    """It asks how fast, and nothing about answers."""
    equal_tokens: bool = False
    """It asks for equal tokens, which is more than the statistical level does."""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """All gates of one policy."""

    policy: str
    """Its name, or its digest where that is all that is kept."""
    computed: bool
    """From the comparisons at hand; else as the rollout's judge said it."""
    gates: tuple[GateSaid, ...]
    silent: tuple[str, ...] = ()
    """Gates of the policy that have said nothing yet."""

    @property
    def passed(self) -> bool:
        """Every gate says pass, none is silent, and one of them is about answers."""
        return (
            not self.silent
            and all(one.answer is Answer.PASS for one in self.gates)
            and not all(one.performance for one in self.gates)
        )

    def not_of_hashes(self, gates: Collection[str]) -> Verdicts:
        """These, of evidence that was kept as hashes: what ``gates`` say of token IDs is not to be had."""
        why = "its evidence was kept as hashes (evidence.store), and it reads token IDs"
        return msgspec.structs.replace(
            self,
            gates=tuple(
                msgspec.structs.replace(one, answer=Answer.ERROR, reason=why) if one.gate in gates else one
                for one in self.gates
            ),
        )

    def saying(self, *answers: Answer) -> tuple[GateSaid, ...]:
        """The gates with one of these answers."""
        return tuple(one for one in self.gates if one.answer in answers)


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a stored verdict; other keys are for other readers."""

    gate: str
    answer: Answer
    n: int
    reason: str
    policy_digest: str
    unix_s: float


class BadVerdicts(ValueError):  # noqa: N818
    """A bundle's verdicts are none."""


def stored(rows: Iterable[Mapping[str, Any]], policy: Mapping[str, Any] | None) -> Verdicts | None:
    """The newest answer of each gate under the newest policy; None where no gate has said anything.

    Args:
        rows: stored verdicts in any order.
        policy: of that rollout, as a bundle's head tells it: ``digest``, ``gates`` (their names), ``name``.

    Raises:
        BadVerdicts: a row is no verdict.
    """
    try:
        read = [msgspec.convert(row, _Row) for row in rows]
    except msgspec.ValidationError as error:
        found = misfit_of(error)
        place = f"verdicts: {found.path}: " if found.path else "verdicts: "
        raise BadVerdicts(f"{place}{found.text}") from error
    if not read:
        return None
    read.sort(key=lambda row: row.unix_s)
    digest = read[-1].policy_digest
    told: Mapping[str, Any] = policy if policy is not None and policy.get("digest") == digest else {}
    newest = {row.gate: row for row in read if row.policy_digest == digest}
    return Verdicts(
        policy=str(told.get("name") or digest),
        computed=False,
        gates=tuple(
            GateSaid(
                gate=row.gate,
                answer=row.answer,
                n=row.n,
                reason=row.reason,
                performance=_of_performance(row.gate),
                equal_tokens=KINDS.get(row.gate) is TokenEquality,
            )
            for row in newest.values()
        ),
        silent=tuple(str(name) for name in told.get("gates") or () if name not in newest),
    )


class Judging:
    """A policy's gates over comparisons as they come, at the levels of a rollout's first look."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._states: dict[str, Any] = {name: gate.initial() for name, gate in policy.gates.items()}

    def add(self, comparison: Comparison) -> None:
        """Every gate folds it."""
        for name, gate in self._policy.gates.items():
            self._states[name] = gate.fold(self._states[name], comparison)

    def verdicts(self) -> Verdicts:
        """What the gates say of all that they have folded."""
        gates = self._policy.gates
        alphas = levels_of(self._policy.alpha, gates)
        said = {name: ask(gate, self._states[name], alphas[name]) for name, gate in gates.items()}
        return Verdicts(
            policy=self._policy.name,
            computed=True,
            gates=tuple(
                GateSaid(
                    gate=name,
                    answer=one.answer,
                    n=one.n,
                    reason=one.reason,
                    performance=gates[name].performance,
                    equal_tokens=isinstance(gates[name], TokenEquality),
                )
                for name, one in said.items()
            ),
        )


def _of_performance(kind: str) -> bool:
    """Where only a gate's name is kept, it tells the kind if it is one."""
    known = KINDS.get(kind)
    return known is not None and known.performance

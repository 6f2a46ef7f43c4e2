"""The policy file: what is asked of a candidate, frozen and hashed before any traffic.

::

    level: token            # artifact | environment | token | statistical
    alpha: 0.05             # the rollout's share of false alarms, split as policies.levels says
    on_fail: rollback       # or hold
    gates:
      token_equality: {minimum_pairs: 1000}
      slow: {kind: ttft, source: live, quantile: 0.95, maximum_ratio: 1.2}
    suites:                 # frozen samples that gates of the estimand `suite` read
      starter: {passes: 5}  # policies.suite_section

A gate's key is its name; ``kind`` says what it is and may be left out where the name is a kind. A gate may
have an ``on_fail`` of its own, and ``scope: tenant`` keeps it for each canary tenant by itself: its failure
sends that tenant home, and the others stay. Unknown keys, unknown gates and limits out of range are refused
with their place in the file and a way out.
"""

from __future__ import annotations

import difflib
import enum
import hashlib
import importlib.resources
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from comparator.misfit import misfit_of
from policies.errors import PolicyError
from policies.gates import KINDS, AnyGate, GpuMemory, SampleRatio
from policies.gates.base import suite_of
from policies.suite_section import STARTER, ScorerSection, SuiteSection
from policies.yaml_text import mapping_of

SHIPPED = ("audit", "open-answers", "sampling")
"""Names of the policies that come with the package."""


class Level(enum.StrEnum):
    """How equal two environments are meant to be, strictest first."""

    ARTIFACT = "artifact"
    ENVIRONMENT = "environment"
    TOKEN = "token"  # noqa: S105 - a level, not a secret
    STATISTICAL = "statistical"


class OnFail(enum.StrEnum):
    """What a failed gate does to its rollout."""

    ROLLBACK = "rollback"
    HOLD = "hold"


class Scope(enum.StrEnum):
    """Whose evidence a gate is asked about."""

    ROLLOUT = "rollout"
    """Everybody's together; its failure is the rollout's."""
    TENANT = "tenant"
    """Each canary tenant's by itself; its failure sends that tenant home."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checked policy. Two policies that mean the same have the same :attr:`digest`, however written."""

    name: str
    level: Level
    alpha: float
    on_fail: OnFail
    gates: dict[str, AnyGate]
    on_fails: dict[str, OnFail] = {}
    """Of the gates that say otherwise than the policy."""
    tenant_gates: tuple[str, ...] = ()
    """Gates that are kept by tenant, sorted."""
    suites: dict[str, SuiteSection] = {}
    suite_digests: dict[str, str] = {}
    """Of each suite's content, and of its scorers': told by whoever loaded them (:meth:`with_suites`)."""

    def on_fail_of(self, gate: str) -> OnFail:
        """What a failure of this gate does."""
        return self.on_fails.get(gate, self.on_fail)

    def with_suites(self, digests: Mapping[str, str]) -> Policy:
        """This policy, with what its suites were found to hold.

        Raises:
            PolicyError: ``digests`` are not those of exactly the policy's suites.
        """
        if set(digests) != set(self.suites):
            raise PolicyError(
                f"{self.name}: suites: digests of {_words(sorted(digests)) or 'none'} were given for "
                f"{_words(sorted(self.suites)) or 'none'}; load every suite of the policy, and no other"
            )
        return msgspec.structs.replace(self, suite_digests=dict(digests))

    def canonical(self) -> bytes:
        """Canonical JSON of what the policy means: every default spelled out, keys sorted, no name.

        The file's name is no part of it: a copied file is the same policy. Of a suite its content counts,
        not where it lies.

        Raises:
            PolicyError: a suite's content is not known yet; :meth:`with_suites` comes first.
        """
        unknown = sorted(set(self.suites) - set(self.suite_digests))
        if unknown:
            raise PolicyError(f"{self.name}: suites.{unknown[0]}: is not loaded, so the policy has no digest")
        meaning: dict[str, Any] = {
            "level": self.level,
            "alpha": self.alpha,
            "on_fail": self.on_fail,
            "gates": self.gates,
        }
        if self.on_fails:
            meaning["on_fails"] = self.on_fails
        if self.tenant_gates:
            meaning["tenant_gates"] = self.tenant_gates
        if self.suites:
            meaning["suites"] = {
                name: section.meaning(self.suite_digests[name]) for name, section in self.suites.items()
            }
        return msgspec.json.encode(meaning, order="sorted")

    @property
    def digest(self) -> str:
        """``sha256:`` and the hex SHA-256 of :meth:`canonical`."""
        return "sha256:" + hashlib.sha256(self.canonical()).hexdigest()


def load_policy(name_or_text: str, where: str | None = None) -> Policy:
    """A shipped policy by name, or one from the text of a policy file. Reads no file of the caller's.

    Args:
        name_or_text: one of :data:`SHIPPED`, or YAML text.
        where: what messages call the text, for instance its file name.

    Raises:
        PolicyError: what is wrong, where, and what to do.
    """
    if re.fullmatch(r"[A-Za-z0-9_-]+", name_or_text):
        if name_or_text not in SHIPPED:
            raise PolicyError(
                f"policy {name_or_text!r}: no shipped policy of that name"
                f"{_meant(name_or_text, SHIPPED)}; shipped are {_words(SHIPPED)}, else give a file's path"
            )
        text = shipped_text(name_or_text)
        return policy_of(mapping_of(text, name_or_text), name_or_text)
    where = where or "policy"
    return policy_of(mapping_of(name_or_text, where), where)


def shipped_text(name: str) -> str:
    """The commented YAML of a shipped policy."""
    return importlib.resources.files("policies").joinpath("shipped", f"{name}.yaml").read_text("utf-8")


def policy_of(mapping: Mapping[str, Any], where: str) -> Policy:
    """A policy from a decoded file.

    Raises:
        PolicyError: as :func:`load_policy`.
    """
    known = ("level", "alpha", "on_fail", "gates", "suites")
    for key in mapping:
        if key not in known:
            raise PolicyError(f"{where}: {key}: unknown key{_meant(key, known)}; known are {_words(known)}")
    for key in ("level", "alpha", "gates"):
        if key not in mapping:
            raise PolicyError(f"{where}: {key}: missing; a policy needs level, alpha and gates")
    alpha = mapping["alpha"]
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise PolicyError(
            f"{where}: alpha: {_said(alpha)} is no number; give one between 0 and 1, such as 0.05"
        )
    if not 0.0 < alpha < 1.0:
        raise PolicyError(f"{where}: alpha: {alpha} is outside 0-1, both excluded; 0.05 is usual")
    gates = mapping["gates"]
    if not isinstance(gates, Mapping) or not gates:
        raise PolicyError(
            f"{where}: gates: must name at least one gate; without one nothing can fail, and nothing can pass"
        )
    on_fail = _one_of(OnFail, mapping.get("on_fail", "rollback"), f"{where}: on_fail")
    for name in gates:
        _named(name, f"{where}: gates")
    own = {
        name: _one_of(OnFail, limits["on_fail"], f"{where}: gates.{name}.on_fail")
        for name, limits in gates.items()
        if isinstance(limits, Mapping) and "on_fail" in limits
    }
    scopes = {
        name: _one_of(Scope, limits["scope"], f"{where}: gates.{name}.scope")
        for name, limits in gates.items()
        if isinstance(limits, Mapping) and "scope" in limits
    }
    made = Policy(
        name=where,
        level=_one_of(Level, mapping["level"], f"{where}: level"),
        alpha=float(alpha),
        on_fail=on_fail,
        on_fails={name: its for name, its in own.items() if its is not on_fail},
        gates={name: _gate(name, limits, f"{where}: gates.{name}") for name, limits in gates.items()},
        tenant_gates=tuple(sorted(name for name, scope in scopes.items() if scope is Scope.TENANT)),
        suites=_suites(mapping.get("suites"), f"{where}: suites"),
    )
    _check_suites(made, where)
    _check_scopes(made, where)
    return made


def _suites(section: Any, where: str) -> dict[str, SuiteSection]:
    section = {} if section is None else section
    if not isinstance(section, Mapping):
        raise PolicyError(f"{where}: {_said(section)} is no mapping of suites; write {{{STARTER}: {{}}}}")
    suites = {}
    for name, value in section.items():
        place = f"{where}.{_named(name, where)}"
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise PolicyError(f"{place}: {_said(value)} is no mapping; write {{file: PATH, passes: 5}}")
        fields = SuiteSection.__struct_fields__
        for key in value:
            if key not in fields:
                raise PolicyError(
                    f"{place}.{key}: unknown key{_meant(str(key), fields)}; a suite knows {_words(fields)}"
                )
        if isinstance(scorers := value.get("scorers"), Mapping):
            for key, scorer in scorers.items():
                _check_scorer(scorer, f"{place}.scorers.{key}")
        try:
            suites[name] = msgspec.convert(dict(value), SuiteSection)
        except msgspec.ValidationError as exc:
            raise PolicyError(_placed(exc, place)) from exc
        if suites[name].file is None and name != STARTER:
            raise PolicyError(
                f"{place}.file: missing; only the shipped suite {STARTER!r} goes without, name a JSONL file"
            )
    return suites


def _check_scorer(scorer: Any, place: str) -> None:
    if not isinstance(scorer, Mapping):
        named = scorer if isinstance(scorer, str) and ":" in scorer else "FILE.py:FUNCTION"
        raise PolicyError(f'{place}: {_said(scorer)} is no mapping; write {{python: "{named}"}}')
    try:
        msgspec.convert(dict(scorer), ScorerSection)
    except msgspec.ValidationError as exc:
        raise PolicyError(_placed(exc, place)) from exc


def _check_suites(policy: Policy, where: str) -> None:
    """Every gate that reads a suite has one, and every suite is asked for a gate."""
    read: set[str] = set()
    for name, gate in policy.gates.items():
        suite = suite_of(gate)
        if suite is None:
            continue
        read.add(suite)
        if suite not in policy.suites:
            known = f"; the policy has {_words(policy.suites)}" if policy.suites else ""
            example = "{}" if suite == STARTER else "{file: PATH}"
            raise PolicyError(
                f"{where}: gates.{name}.suite: the policy has no suite {suite!r}"
                f"{_meant(suite, policy.suites)}{known}; add `suites: {{{suite}: {example}}}`"
            )
    for name in policy.suites:
        if name not in read:
            raise PolicyError(
                f"{where}: suites.{name}: no gate reads it, so it would be asked for nothing; "
                "name it in a gate or remove it"
            )


def _check_scopes(policy: Policy, where: str) -> None:
    """Only what is seen of one tenant can be kept by tenant."""
    for name in policy.tenant_gates:
        gate = policy.gates[name]
        if suite_of(gate) is not None:
            why = "a suite's samples are no tenant's"
        elif isinstance(gate, GpuMemory):
            why = "an engine's memory is no tenant's"
        elif isinstance(gate, SampleRatio):
            why = "it counts the copies of everybody"
        else:
            continue
        raise PolicyError(f"{where}: gates.{name}.scope: {why}; leave scope out")


def _gate(name: str, limits: Any, where: str) -> AnyGate:
    limits = {} if limits is None else limits
    if not isinstance(limits, Mapping):
        raise PolicyError(f"{where}: {_said(limits)} is no mapping of limits; write {{}} for the defaults")
    kind = limits.get("kind", name)
    if not isinstance(kind, str) or kind not in KINDS:
        place = (
            f"{where}.kind: {kind if isinstance(kind, str) else _said(kind)}" if "kind" in limits else where
        )
        raise PolicyError(
            f"{place}: unknown gate{_meant(kind, KINDS)}; known are {_words(KINDS)}"
            + ("" if "kind" in limits else " (a gate of another name needs `kind`)")
        )
    struct = KINDS[kind]
    fields = [*(field for field in struct.__struct_fields__ if field != "name"), "on_fail", "scope"]
    for key in limits:
        if key != "kind" and key not in fields:
            raise PolicyError(
                f"{where}.{key}: unknown key{_meant(str(key), fields)}; {kind} knows {_words(fields)}"
            )
    limits = {key: value for key, value in limits.items() if key not in ("on_fail", "scope")}
    for key, hint in get_type_hints(struct).items():
        choices = get_args(hint)
        if get_origin(hint) is Literal and key in limits and limits[key] not in choices:
            raise PolicyError(
                f"{where}.{key}: {_said(limits[key])} is unknown{_meant(limits[key], choices)}; "
                f"known are {_words(choices)}"
            )
    try:
        return msgspec.convert({**limits, "kind": kind, "name": name}, struct)
    except msgspec.ValidationError as exc:
        raise PolicyError(_placed(exc, where)) from exc


def _placed(error: msgspec.ValidationError, where: str) -> str:
    """A misfit in the policy's words, the place first."""
    found = misfit_of(error)
    at = f"{where}.{found.path}" if found.path else where
    if found.missing is not None:
        return f"{where}.{found.field(found.missing)}: missing; it has no default"
    # Errors of a struct's own check name their field themselves, and msgspec adds the place of the whole.
    own = re.match(r"(\w+)( or \w+)?: ", found.text)
    return f"{at}.{found.text}" if own else f"{at}: {found.lowered}"


def _one_of(kind: type[enum.StrEnum], value: Any, where: str) -> Any:
    try:
        return kind(value)
    except ValueError as exc:
        names = [member.value for member in kind]
        raise PolicyError(
            f"{where}: {_said(value)} is unknown{_meant(value, names)}; known are {_words(names)}"
        ) from exc


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _named(name: Any, where: str) -> str:
    """A key that is a name: it stands in verdicts, metrics and log lines.

    Raises:
        PolicyError: it is none.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise PolicyError(
        f"{where}: the name {_said(name)} is not 1-63 letters, digits, '.', '_' and '-', the first a letter "
        "or digit; a number goes in quotes"
    )


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80


def _said(value: Any) -> str:
    """A value that is not what it should be, for a message: never longer than a line or two."""
    return _SHORT.repr(value)


def _meant(word: Any, known: Iterable[str]) -> str:
    if not isinstance(word, str) or len(word) > 100:
        return ""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {near[0]}?" if near else ""


def _words(names: Iterable[str]) -> str:
    return ", ".join(names)

"""The policy files that rollouts name, and the files that those name: read once, frozen, hashed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec

from forkgate.config.model import Config, RolloutSection
from forkgate.config.problems import Problem
from forkgate.config.suites import LoadedSuite, SuiteSource, load_suite, read_suite
from policies.errors import PolicyError
from policies.gates import SampleRatio
from policies.lint import SuiteSize, refusals
from policies.policy import Policy, load_policy

MOST_POLICY_BYTES = 1_048_576
_SHIPPED_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""What may be a shipped policy's name. Anything else (a dot, a slash) is a file's path."""


class PolicySource(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as it was read. Handed to every judge of one ``serve``, so that a file edited meanwhile
    changes nothing."""

    where: str
    """What the configuration says: a shipped policy's name, or a file."""
    text: str
    """What ``load_policy`` takes: that name, or the file's text."""
    suites: dict[str, SuiteSource] = {}


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that has its digest, and the suites that it names."""

    policy: Policy
    suites: dict[str, LoadedSuite] = {}


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """What became of every rollout's ``policy:``."""

    sources: dict[str, PolicySource]
    """By rollout."""
    policies: dict[str, Policy]
    suites: dict[str, dict[str, LoadedSuite]]
    """By rollout and name."""
    problems: tuple[Problem, ...]


def read_policies(config: Config) -> Policies:
    """Read and check them all; what is wrong is reported, not raised."""
    sources: dict[str, PolicySource] = {}
    loaded: dict[str, Frozen] = {}
    problems: list[Problem] = []
    for index, rollout in enumerate(config.rollouts):
        source, found = read_policy(rollout.policy)
        if source is not None:
            sources[rollout.name] = source
            loaded[rollout.name] = frozen(source)
            found = undecidable(rollout.policy, loaded[rollout.name])
        if source is not None:
            found += miscounted(config, rollout, loaded[rollout.name].policy)
        problems += [Problem(path=f"rollouts[{index}].policy", message=message) for message in found]
    return Policies(
        sources=sources,
        policies={name: one.policy for name, one in loaded.items()},
        suites={name: one.suites for name, one in loaded.items()},
        problems=tuple(problems),
    )


def read_policy(policy: str) -> tuple[PolicySource | None, list[str]]:
    """One policy and all files that it names.

    Args:
        policy: a shipped policy's name, or a file's path.

    Returns:
        The source, or None and everything that is wrong, each as one sentence with its place.
    """
    if _SHIPPED_NAME.fullmatch(policy):
        text = policy
    else:
        content, problem = _text(policy)
        if content is None:
            return None, [problem]
        text = content
    try:
        made = load_policy(text, policy)
    except PolicyError as error:
        return None, [str(error)]
    suites: dict[str, SuiteSource] = {}
    problems: list[str] = []
    for name, section in made.suites.items():
        source, found = read_suite(name, section, Path(policy).parent)
        problems += [f"{policy}: {message}" for message in found]
        if source is not None:
            suites[name] = source
    if problems:
        return None, problems
    return PolicySource(where=policy, text=text, suites=suites), []


def _text(path: str) -> tuple[str | None, str]:
    """A policy file's text, or why there is none."""
    try:
        with Path(path).open("rb") as opened:
            content = opened.read(MOST_POLICY_BYTES + 1)
    except FileNotFoundError:
        return None, f"no such file: {path!r}"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return None, f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}"
    if len(content) > MOST_POLICY_BYTES:
        return (
            None,
            f"{path!r} has more than {MOST_POLICY_BYTES} bytes, the most that is read; name another file",
        )
    try:
        return content.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        return None, f"{path!r} is no UTF-8 text at byte {error.start + 1}; save the file as UTF-8"


def undecidable(policy: str, read: Frozen) -> list[str]:
    """Limits that no evidence whatever could decide, so that a rollout under this policy would never end."""
    sizes = {name: SuiteSize.of(one.suite, one.passes) for name, one in read.suites.items()}
    return [f"{policy}: {message}" for message in refusals(read.policy, sizes)]


def miscounted(config: Config, rollout: RolloutSection, policy: Policy) -> list[str]:
    """Sample-ratio gates that expect other copies than are asked for: each would hold its rollout for a loss
    that there is not."""
    problems = []
    others = [one.name for one in config.rollouts if one.name != rollout.name and one.shadow.percent > 0.0]
    for name, gate in policy.gates.items():
        if not isinstance(gate, SampleRatio):
            continue
        at = f"{rollout.policy}: gates.{name}"
        if others:
            problems.append(
                f"{at}: live records do not tell which rollout a request was copied for, and "
                f"{', '.join(others)} copies the same traffic; leave the gate out where rollouts run together"
            )
        elif not math.isclose(gate.expected_percent, rollout.shadow.percent):
            problems.append(
                f"{at}.expected_percent: {gate.expected_percent:g} is not the rollout's shadow.percent, "
                f"{rollout.shadow.percent:g}; give both the same"
            )
    return problems


def frozen(source: PolicySource) -> Frozen:
    """The policy and its suites out of what was read.

    Raises:
        PolicyError: the source was not made by :func:`read_policy`.
    """
    policy = load_policy(source.text, source.where)
    suites = {name: load_suite(one) for name, one in source.suites.items()}
    digests = {name: one.digest for name, one in suites.items()}
    return Frozen(policy=policy.with_suites(digests), suites=suites)

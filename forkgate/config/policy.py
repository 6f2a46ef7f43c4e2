"""The policy files that rollouts name: read once, frozen, hashed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from forkgate.config.model import Config
from forkgate.config.problems import Problem
from policies.errors import PolicyError
from policies.policy import Policy, load_policy


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """What became of every rollout's ``policy:``."""

    sources: dict[str, str]
    """Rollout → what ``load_policy`` takes: a shipped policy's name, or a file's text as it was read.
    Handed to every judge of this ``serve``, so that a file edited meanwhile changes nothing."""
    policies: dict[str, Policy]
    problems: tuple[Problem, ...]


def read_policies(config: Config) -> Policies:
    """Read and check them all; what is wrong is reported, not raised."""
    sources: dict[str, str] = {}
    policies: dict[str, Policy] = {}
    problems: list[Problem] = []
    for index, rollout in enumerate(config.rollouts):
        path = f"rollouts[{index}].policy"
        try:
            source = (
                Path(rollout.policy).read_text(encoding="utf-8") if "/" in rollout.policy else rollout.policy
            )
        except FileNotFoundError:
            problems.append(Problem(path=path, message=f"no such file: {rollout.policy!r}"))
            continue
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(path=path, message=f"{rollout.policy!r} cannot be read: {error}"))
            continue
        try:
            policies[rollout.name] = load_policy(source, rollout.policy)
        except PolicyError as error:
            problems.append(Problem(path=path, message=str(error)))
            continue
        sources[rollout.name] = source
    return Policies(sources=sources, policies=policies, problems=tuple(problems))

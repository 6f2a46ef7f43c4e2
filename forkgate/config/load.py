"""A file's path → :class:`Config`, or every reason why not."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from forkgate.config.checks import cross_check
from forkgate.config.evidence import EvidenceSection
from forkgate.config.model import Config, PoolSection
from forkgate.config.policy import read_policies
from forkgate.config.problems import ConfigError, Problem
from forkgate.config.repair import readable
from forkgate.config.shape import build
from forkgate.config.source import parse


def load(path: str | os.PathLike[str]) -> Config:
    """Read, shape and cross-check a configuration file.

    Relative paths in the file are relative to the file's own directory; the returned values hold absolute
    ones, so that every process of the sidecar means the same files.

    Raises:
        ConfigError: with all problems found: those of the YAML, else those of the shape and, as far as the
            parts concerned can be read, those between values.
    """
    file = os.fspath(path)
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(file, [Problem(path="", message="no such file")]) from None
    except IsADirectoryError:
        raise ConfigError(file, [Problem(path="", message="is a directory, name the file in it")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            file, [Problem(path="", message=f"not UTF-8 text: {error.reason} at byte {error.start}")]
        ) from None
    except OSError as error:
        raise ConfigError(file, [Problem(path="", message=f"cannot be read: {error.strerror}")]) from error
    return loads(text, file)


def loads(text: str, file: str = "forkgate.yaml") -> Config:
    """:func:`load` for text that is at hand. ``file`` names it in errors and anchors relative paths."""
    data, lines = parse(text, file)
    if data is None:
        raise ConfigError(file, [Problem(path="", message="is empty, start from forkgate.example.yaml")])
    config, problems = build(Config, data)
    broken: frozenset[str] = frozenset()
    if config is None:
        config, broken = readable(data, problems)
    if config is not None:
        config = _anchored(config, Path(file).absolute().parent)
        more = cross_check(config, broken)
        if "rollouts" not in broken:
            more += read_policies(config).problems
        named = {problem.path for problem in problems}
        problems += [problem for problem in more if problem.path not in named]
    if config is None or problems:
        raise ConfigError(file, [_with_line(problem, lines) for problem in problems])
    return config


def _anchored(config: Config, base: Path) -> Config:
    rollouts = tuple(
        msgspec.structs.replace(rollout, policy=str(base / rollout.policy))
        if is_policy_path(rollout.policy)
        else rollout
        for rollout in config.rollouts
    )
    return msgspec.structs.replace(
        config,
        state_dir=str(base / config.state_dir),
        rollouts=rollouts,
        pools=tuple(_anchored_pool(pool, base) for pool in config.pools),
        evidence=_anchored_evidence(config.evidence, base),
    )


def _anchored_pool(pool: PoolSection, base: Path) -> PoolSection:
    return msgspec.structs.replace(
        pool,
        environment_record=_at(base, pool.environment_record),
        artifact_record=_at(base, pool.artifact_record),
    )


def _anchored_evidence(section: EvidenceSection, base: Path) -> EvidenceSection:
    encryption = section.encryption
    if encryption is None:
        return section
    old_keys = tuple(
        msgspec.structs.replace(old, key_file=_at(base, old.key_file)) for old in encryption.old_keys
    )
    anchored = msgspec.structs.replace(encryption, key_file=_at(base, encryption.key_file), old_keys=old_keys)
    return msgspec.structs.replace(section, encryption=anchored)


def _at(base: Path, file: str | None) -> str | None:
    return None if file is None else str(base / file)


def is_policy_path(policy: str) -> bool:
    """Whether ``policy:`` names a file rather than one of the shipped policies."""
    return "/" in policy or policy.endswith((".yaml", ".yml"))


def _with_line(problem: Problem, lines: dict[str, int]) -> Problem:
    """The line of the path itself, or of the nearest thing around it that stands in the file."""
    path = problem.path
    while path not in lines and path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return msgspec.structs.replace(problem, line=lines.get(path)) if path else problem

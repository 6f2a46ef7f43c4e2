"""What a restart under an edited configuration would change, told from the state directory alone.

A rollout's state of a second ago is in ``rollouts.json``, whether a judge runs or not; what a judge would
make of it is :func:`policies.rollout.resume`, which is pure. So nothing is asked of anybody, and nothing is
changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from comparator.evidence import NO_KEYS, Keyring
from comparator.evidence.keys import SealedFileError, SealedKeyError, open_file
from forkgate.config.model import Config
from forkgate.config.policy import frozen, read_policies
from forkgate.judge.checkpoint import PURPOSE, decoded
from forkgate.judge.desk import begun, plan_of
from forkgate.judge.plan_view import edit_view
from forkgate.state.home import HomeUnclear, home_moved
from forkgate.state.latch import Latch, LatchCorrupt, read_latch
from forkgate.state.paths import StatePaths
from policies.rollout import RolloutState


def edited(config: Config, paths: StatePaths, keys: Callable[[], Keyring]) -> list[dict[str, Any]]:
    """One entry a rollout, of the file and of those that it names no more.

    Args:
        config: the edited one; its policies are read from disk as a start would read them.
        keys: those that the edited file names, since a judge under it has no others; asked for where the
            states are sealed.

    Raises:
        SealedKeyError: the states are sealed, and none of these keys opens them.
        NewerStatesError: a newer forkgate wrote them.
        OSError: they cannot be read.
    """
    states, latch = _states(paths, keys), _latch(paths)
    told: list[dict[str, Any]] = []
    for name, source in read_policies(config).sources.items():
        plan = plan_of(config.rollout(name), frozen(source).policy, config)
        state = states.pop(name, None)
        if state is None:
            fresh = begun(plan, latch, config)
            held = None if fresh.held is None else fresh.held.reason
            told.append({"name": name, "new": True, "gone": False, "place_after": fresh.place, "held": held})
        else:
            told.append(edit_view(state, plan, time.time()))
    for name, state in states.items():
        told.append({"name": name, "new": False, "gone": True, "place": state.place, "moves": _home(state)})
    try:
        home_moved(latch, config.home, {one.name: one.candidate for one in config.rollouts})
    except HomeUnclear as error:
        told.append({"name": "home", "new": False, "gone": False, "refused": str(error)})
    return told


def _home(state: RolloutState) -> dict[str, list[str]]:
    return {str(tenant): [str(state.plan.candidate), "home"] for tenant in state.routed}


def _states(paths: StatePaths, keys: Callable[[], Keyring]) -> dict[str, RolloutState]:
    try:
        content = paths.rollouts.read_bytes()
        try:
            content = open_file(NO_KEYS, PURPOSE, content)
        except SealedKeyError:
            content = open_file(keys(), PURPOSE, content)
        file = decoded(content)
    except SealedKeyError:
        raise
    except (FileNotFoundError, msgspec.DecodeError, SealedFileError):
        return {}  # what a judge makes of it: it begins from nothing
    return {kept.state.plan.name: kept.state for kept in file.rollouts}


def _latch(paths: StatePaths) -> Latch:
    try:
        return read_latch(paths.latch)
    except LatchCorrupt:
        return Latch()

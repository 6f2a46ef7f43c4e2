"""A rollout's ``checks:`` section: what is asked before anything is compared.

Both checks ask the engines directly, a few prompts of a few tokens, and no client's traffic is on the
candidate yet: a check that fails holds the rollout and never rolls it back.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two checks that a rollout starts with."""

    self_check: bool = True
    """Ask the baseline the same prompts several times before it is compared with anything: whether it
    reproduces itself. At the levels token, environment and artifact one that does not holds the rollout:
    token equality cannot be asked of it."""
    quick_check: bool = True
    """Ask both arms a few short answers before the full comparison: another tokenizer, chat template or
    setting, or a candidate that fails outright, holds the rollout here, within seconds."""
    self_runs: Annotated[int, Meta(ge=2, le=20)] = 5
    """Runs of the self check, one after another on each of the baseline's endpoints."""
    prompts: Annotated[int, Meta(ge=1, le=16)] = 10
    """Prompts of each check, out of sixteen that come with forkgate; ten hold every category."""
    tokens: Annotated[int, Meta(ge=1, le=256)] = 20
    """Output tokens of each answer at most. Forks come early; 20 find nearly every setting that differs."""

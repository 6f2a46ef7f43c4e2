"""What one setting is."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class Level(enum.StrEnum):
    """What two environments are to share."""

    ARTIFACT = "artifact"  # the same files are served
    ENVIRONMENT = "environment"  # two starts make the same environment
    TOKEN = "token"  # noqa: S105 -- the same request gets the same tokens
    STATISTICAL = "statistical"  # the same request draws from the same distribution


ALL = frozenset(Level)
FROM_ENVIRONMENT = frozenset({Level.ENVIRONMENT, Level.TOKEN, Level.STATISTICAL})
"""What decides the distribution itself."""
REPEATED = frozenset({Level.ENVIRONMENT, Level.TOKEN})
"""What moves a sample, or the order of sums, inside one distribution."""
TOKEN = frozenset({Level.TOKEN})


class Batch(enum.StrEnum):
    """How a request's neighbours are kept from moving it."""

    ONE = "one"  # there are none: one request at a time
    INVARIANT = "invariant"  # kernels whose sums do not depend on them


class NotOffered(ValueError):  # noqa: N818
    """The engine has no such mode; the message says what to do instead."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What only the operator can choose. It must be the same wherever tokens are compared."""

    seed: int = 0
    dtype: str = "bfloat16"
    batch: Batch = Batch.ONE
    threads: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"--seed: {self.seed} is outside 0-{2**31 - 1}")
        if not 1 <= self.threads <= 1024:
            raise ValueError(f"--threads: {self.threads} is outside 1-1024")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Exactly one of ``flag``, ``variable``, ``key``, ``absent`` and ``request`` says what it is."""

    name: str
    levels: frozenset[Level]
    reason: str
    cost: str
    """What it is known to cost; "none known" where nobody measured any."""
    source: str
    flag: str | None = None
    value: str | None = None
    """Of ``flag`` or ``variable``; None for a flag without a value."""
    variable: str | None = None
    key: str | None = None
    """Dotted key of the engine's own configuration file."""
    key_value: Any = None
    absent: str | None = None
    """A flag that must not be given."""
    request: str | None = None
    """What each request must carry, where the engine has no setting for it."""
    aliases: tuple[str, ...] = ()
    """Other names of the flag."""
    contrary: tuple[str, ...] = ()
    """Flags that undo it."""
    field: str | None = None
    """Field of the environment record that tells it."""
    field_value: Any = None
    """What that field reads when it is met; ``value`` as text otherwise."""
    condition: str = ""
    """Where alone it works."""

    def shown(self) -> str:
        """The setting as a person writes it."""
        if self.variable is not None:
            return f"{self.variable}={self.value}"
        if self.key is not None:
            return f"{self.key}: {_plain(self.key_value)}"
        if self.absent is not None:
            return f"no {self.absent}"
        if self.request is not None:
            return f"each request: {self.request}"
        return self.flag if self.value is None else f"{self.flag} {self.value}"  # type: ignore[return-value]


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's rows, verified for ``since`` <= version < ``before``."""

    engine: str
    since: str
    before: str
    command: tuple[str, ...]
    """How it is started, before its flags; MODEL stands for the model's folder."""
    file_flag: str | None = None
    """Flag that names the configuration file of rows with a ``key``."""
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

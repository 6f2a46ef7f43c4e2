"""The ``evidence:`` section: what is kept of what was compared, how, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from comparator.evidence.hashed import Kept
from comparator.evidence.tenants import Retention
from forkgate.config.problems import did_you_mean
from forkgate.config.rules import Found, check_files

if TYPE_CHECKING:
    from forkgate.config.model import Config


class KeySource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a key comes from; exactly one of the three. 32 random bytes as base64 or 64 hex digits:
    ``openssl rand -base64 32``."""

    key_file: str | None = None
    key_env: str | None = None
    """The name of an environment variable, not the key."""
    key_command: tuple[str, ...] = ()
    """A program and its arguments, no shell; it writes the key to its standard output within 10 seconds."""


class Encryption(KeySource, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key that new evidence is sealed with (AES-256-GCM), read once when the judge starts."""

    old_keys: tuple[KeySource, ...] = ()
    """Keys that older evidence is still sealed with, until ``forkgate evidence rekey`` has said that it needs
    them no more. With these alone and no key of its own, new evidence is not sealed."""


class EvidenceSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The SQLite file of what was compared, in ``state_dir``."""

    max_bytes: Annotated[int, Meta(ge=1_048_576)] = 10_000_000_000
    """Oldest evidence goes first once the file would grow beyond this."""
    store: Kept = Kept.FULL
    """``full``, or ``hashes``: keyed hashes in the place of token IDs, and no text. Such evidence cannot be
    replayed; needs ``encryption``."""
    encryption: Encryption | None = None
    """Absent: evidence stands in the file as it is, which its owner alone may read (0600)."""
    retention: tuple[Retention, ...] = ()
    """By tenant; what none of them means stays until ``max_bytes``."""


def check_evidence(config: Config) -> Found:
    """What is wrong with this section, beside its shape."""
    section = config.evidence
    encryption = section.encryption
    if encryption is not None:
        given = _given(encryption)
        if given > 1 or (not given and not encryption.old_keys):
            yield "evidence.encryption", _ONE
        yield from check_files("evidence.encryption", key_file=encryption.key_file)
        for index, old in enumerate(encryption.old_keys):
            path = f"evidence.encryption.old_keys[{index}]"
            if _given(old) != 1:
                yield path, _ONE
            yield from check_files(path, key_file=old.key_file)
    if section.store is Kept.HASHES and (encryption is None or not _given(encryption)):
        yield (
            "evidence.encryption",
            "missing, evidence.store: hashes needs a key: hashes without one are guessed, prompt by prompt",
        )
    tenants = [tenant.name for tenant in config.tenants]
    seen: set[str | None] = set()
    for index, rule in enumerate(section.retention):
        path = f"evidence.retention[{index}]"
        if rule.tenant in seen:
            whose = "every other tenant" if rule.tenant is None else repr(rule.tenant)
            yield f"{path}.tenant", f"{whose} has an entry already, keep one"
        seen.add(rule.tenant)
        if rule.tenant and rule.tenant not in tenants:
            yield (
                f"{path}.tenant",
                f"no tenant is called {rule.tenant!r}, {did_you_mean(rule.tenant, tenants)}",
            )
        if rule.max_age_s is None and rule.max_bytes is None:
            yield path, "limits nothing, set max_age_s or max_bytes"


def key_variables(section: EvidenceSection) -> tuple[str, ...]:
    """Names of the environment variables that hold keys."""
    if section.encryption is None:
        return ()
    sources = (section.encryption, *section.encryption.old_keys)
    return tuple(source.key_env for source in sources if source.key_env is not None)


_ONE = "needs exactly one of key_file, key_env and key_command"


def _given(source: KeySource) -> int:
    return sum((source.key_file is not None, source.key_env is not None, bool(source.key_command)))

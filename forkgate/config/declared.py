"""A pool's ``environment_record`` and ``artifact_record``: files that say whole what a digest says short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engines.identity import artifact_json
from engines.identity import record as environment_json
from engines.identity.canonical import CanonicalError, parse
from engines.identity.trouble import BadRecord, UnreadableFiles
from forkgate.config.rules import Found

if TYPE_CHECKING:
    from forkgate.config.model import Config, PoolSection


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """One record that the configuration declares of a pool."""

    pool: str
    kind: str
    """The document's own ``record``."""
    digest: str
    document: bytes


class DeclaredError(Exception):
    """A file that is no such record, or was changed since it was made: what, where, what to do."""


def declared_records(config: Config) -> Iterator[Declared]:
    """Every record that is declared, read and checked against its digest. Raises DeclaredError."""
    for pool in config.pools:
        for key in ("environment_record", "artifact_record"):
            made = _read(pool, key)
            if made is not None:
                yield made


def check_declared(config: Config) -> Found:
    """Files that cannot be read, are no record, or contradict the pool's digest."""
    for index, pool in enumerate(config.pools):
        for key in ("environment_record", "artifact_record"):
            path = f"pools[{index}].{key}"
            try:
                made = _read(pool, key)
            except DeclaredError as error:
                yield path, str(error)
                continue
            wanted = pool.environment_digest if key == "environment_record" else None
            if made is not None and wanted is not None and made.digest != wanted:
                yield (
                    path,
                    f"its digest is {made.digest}, environment_digest says {wanted}: keep the right one",
                )


def _read(pool: PoolSection, key: str) -> Declared | None:
    file = getattr(pool, key)
    if file is None:
        return None
    try:
        document = Path(file).read_bytes()
        plain = parse(document)
        if key == "environment_record":
            digest = environment_json.from_json(plain).digest
        else:
            digest = artifact_json.from_json(plain).digest
    except OSError as error:
        raise DeclaredError(f"{file!r} cannot be read: {error.strerror}") from error
    except (CanonicalError, BadRecord, UnreadableFiles) as error:
        raise DeclaredError(f"{file!r}: {error}") from error
    return Declared(pool=pool.name, kind=plain["record"], digest=digest, document=document)

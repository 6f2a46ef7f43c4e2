"""The keys of evidence: from a file, a variable or a command to a keyring. Never logged, never passed on.

A judge reads them once, when it starts; without the key that its configuration names it does not start, since
it must neither write in the clear what is to be sealed nor forget what was sealed before.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from comparator.evidence import NO_KEYS, Key, Keyring, KeyTextError, key_of
from forkgate.config.evidence import EvidenceSection, KeySource

COMMAND_S = 10.0
"""What a command may take."""
LONGEST_BYTES = 4_096
"""A key has 44 characters; a file of more than this is none."""


class EvidenceKeyError(Exception):
    """A key that cannot be had: which, why, what to do. Never repeats the key."""


def keyring_of(section: EvidenceSection, environment: Mapping[str, str] | None = None) -> Keyring:
    """The keys that a configuration names.

    Args:
        environment: the process' own when absent.

    Raises:
        EvidenceKeyError: one of them cannot be had.
    """
    encryption = section.encryption
    if encryption is None:
        return NO_KEYS
    where = "evidence.encryption"
    variables = os.environ if environment is None else environment
    has_own = encryption.key_file is not None or encryption.key_env is not None or encryption.key_command
    return Keyring(
        current=_key(where, encryption, variables) if has_own else None,
        old=tuple(
            _key(f"{where}.old_keys[{index}]", old, variables)
            for index, old in enumerate(encryption.old_keys)
        ),
    )


def key_from_file(path: Path) -> Key:
    """Raises EvidenceKeyError."""
    return _key("key file", KeySource(key_file=str(path)), {})


def _key(where: str, source: KeySource, variables: Mapping[str, str]) -> Key:
    try:
        if source.key_file is not None:
            return key_of(_file(f"{where}.key_file", source.key_file))
        if source.key_env is not None:
            return key_of(_variable(f"{where}.key_env", source.key_env, variables))
        return key_of(_command(f"{where}.key_command", source.key_command))
    except KeyTextError as error:
        raise EvidenceKeyError(f"{where}: {error}") from None


def _file(where: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(LONGEST_BYTES)
    except OSError as error:
        raise EvidenceKeyError(f"{where}: {path!r} cannot be read: {error.strerror}") from error


def _variable(where: str, name: str, variables: Mapping[str, str]) -> str:
    text = variables.get(name)
    if not text:
        raise EvidenceKeyError(f"{where}: the environment has no variable {name}, set it to the key")
    return text


def _command(where: str, command: tuple[str, ...]) -> bytes:
    try:
        done = subprocess.run(  # the operator's own command, no shell
            command, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=COMMAND_S
        )
    except subprocess.TimeoutExpired:
        raise EvidenceKeyError(f"{where}: {command[0]!r} did not end within {COMMAND_S:g} s") from None
    except OSError as error:
        raise EvidenceKeyError(f"{where}: {command[0]!r} cannot be run: {error.strerror}") from error
    if done.returncode:
        # Its own words may help, and its standard output, where the key would be, is not among them.
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise EvidenceKeyError(
            f"{where}: {command[0]!r} ended with {done.returncode}" + (f": {said[-1][:200]}" if said else "")
        )
    return done.stdout[:LONGEST_BYTES]

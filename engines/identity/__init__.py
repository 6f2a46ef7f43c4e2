"""Who answered: a record of the environment that produced an exchange, and its digest.

Standard library only, so that it installs with ``--no-deps`` inside an engine's image. A record is a flat
mapping of names to JSON values. Its digest is the SHA-256 of its canonical JSON: keys sorted, no spaces,
ASCII only. A field that is the *place* of a process (a path, a port, a PID, a clock reading) is never part
of a record: the same environment started twice has one digest.
"""

from engines.identity.record import (
    IDENTITY_HEADER,
    Identity,
    UnknownField,
    artifact_digest,
    cpu_flags,
    cpu_model,
    files_sha256,
    sha256_of_file,
)

__all__ = [
    "IDENTITY_HEADER",
    "Identity",
    "UnknownField",
    "artifact_digest",
    "cpu_flags",
    "cpu_model",
    "files_sha256",
    "sha256_of_file",
]

"""Who answered: records of the artifact served and of the environment that served it, each with a digest.

Standard library only (``nvidia-ml-py`` where it is installed), so that it runs with ``--no-deps`` inside an
engine's image::

    canonical            one value, one sequence of bytes (RFC 8785); digests are over these
    artifact, hashing…   the files: recorded, verified, compared, found again     docs/artifact-record.md
    record, environment  the environment: fields, their table, their digest       docs/environment-record.md
    collect, collect_*   where the fields come from: /proc, endpoints, flags, NVML, packages, torch
    levels, levels_*     which level of equality two sides can reach              docs/levels.md
    capture_command      capture as a command of its own, for the zipapp

A field that is the *place* of a process (a path, a port, a PID, a clock reading) is never part of a digest:
the same environment started twice has one digest.
"""

from engines.identity.collect_cpu import cpu_flags, cpu_model
from engines.identity.record import IDENTITY_HEADER, Identity, UnknownField

__all__ = ["IDENTITY_HEADER", "Identity", "UnknownField", "cpu_flags", "cpu_model"]

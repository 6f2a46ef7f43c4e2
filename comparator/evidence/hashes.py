"""Hashes over token IDs, which outlive the IDs themselves."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence


def ids_sha256(token_ids: Sequence[int]) -> str:
    """Hex SHA-256 over token IDs, each as 8 bytes little-endian."""
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}q", *token_ids)).hexdigest()

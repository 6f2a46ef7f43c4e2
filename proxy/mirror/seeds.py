"""Draws and seeds that every process computes alike, from the request ID and a key."""

from __future__ import annotations

from hashlib import blake2b

KEY_BYTES = 64
"""BLAKE2b's longest key: rollout names and global seeds may have no more bytes (RFC 7693, section 2.9)."""

_SEED_MASK = 2**31 - 1
# BLAKE2b's "person" makes each draw a hash of its own: one says nothing of another.
_TOKEN_ONLY = b"token-only"
_CONTROL = b"control"
_TIMING = b"timing"


def derive_seed(global_seed: str, request_id: str, replicate: int = 0) -> int:
    """The seed of replicate ``i``: ``blake2b(f"{request_id}/{i}", key=global_seed, digest_size=8)``.

    Its low 31 bits, read big-endian: one gRPC proto has only an int32. All arms of a replicate share it, no
    two requests do but by chance, and no generator is shared.

    Raises:
        ValueError: the key is too long.
    """
    return _hash(global_seed, f"{request_id}/{replicate}") & _SEED_MASK


def is_token_only(rollout: str, request_id: str, percent: float) -> bool:
    """Whether this copy's arms may be cut after a fork. Independent of the draw that made it a copy."""
    return _hash(rollout, request_id, _TOKEN_ONLY) < percent / 100 * 2**64


def is_control(rollout: str, request_id: str, percent: float) -> bool:
    """Whether this copy runs on the baseline a second time. Independent of every other draw."""
    return _hash(rollout, request_id, _CONTROL) < percent / 100 * 2**64


def is_timing(rollout: str, request_id: str, percent: float) -> bool:
    """Whether this copy runs without logprobs, for its times. Independent of every other draw."""
    return _hash(rollout, request_id, _TIMING) < percent / 100 * 2**64


def _hash(key: str, message: str, person: bytes = b"") -> int:
    raw = key.encode()
    if len(raw) > KEY_BYTES:
        raise ValueError(f"{key[:20]!r}...: {len(raw)} bytes cannot key a hash; use {KEY_BYTES} at most")
    return int.from_bytes(blake2b(message.encode(), key=raw, digest_size=8, person=person).digest(), "big")

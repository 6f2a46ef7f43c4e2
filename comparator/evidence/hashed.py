"""``evidence.store: hashes``: what is kept when no token ID and no text may be.

Theory of operation. Two kinds of keyed hash, because an unkeyed one hides nothing: prompts are guessable and
there are only some hundred thousand token IDs, so whoever holds a plain or a salted hash tries them all.

* *Sequences*: HMAC-SHA256 over all IDs of a prompt or of an answer, with a key derived from the store's own.
  Its holder can show that a given prompt was the one that was asked; nobody else can guess.
* *Single tokens*: AES-256 over one block of (part, place, ID), cut to 62 bits, under a key for each capture
  that comes by keyed BLAKE2b (RFC 7693) from one that is drawn when the store is opened and forgotten with
  the process. Within one capture and place equal IDs have equal hashes, in both arms and their top-k, which
  is all that alignment, margins and errors need: a fork is found again at its step, with its numbers. Two
  places or two captures have nothing in common, so that no frequency is left to count, and nobody, not even
  the key's holder, can try IDs one place at a time. (HMAC would do as well, at five times the cost: a short
  pair has some thousand IDs in its top-k. A block cipher on blocks that never repeat promises the same.)

What is lost: every text (tokens, errors, stop strings), the IDs themselves, and so replay, words in
``evidence show``, and the verdicts of gates that read IDs across captures.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate, chain
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from comparator.evidence.keys import KEY_BYTES, Key, keyed_hash
from comparator.pair import Fork, ForkSide
from comparator.records import Exchange, Sampling, Step

NOT_KEPT = "not kept (evidence.store: hashes)"
SCHEME = "hmac-sha256:"

_PROMPT, _OUTPUT, _SETTINGS = 1, 2, 3
_PART_BITS = 48
"""Places stand below."""
_BITS = (1 << 62) - 1


class Kept(enum.StrEnum):
    """What a store keeps of prompts and answers."""

    FULL = "full"
    HASHES = "hashes"


class Hider:
    """Puts hashes in the place of IDs. One for the life of a writer."""

    def __init__(self, key: Key) -> None:
        self._sequences = key.derive(b"token sequences")
        self._tokens = os.urandom(KEY_BYTES)

    def hashes(self, exchange: Exchange) -> tuple[str, str]:
        """Of prompt and answer."""
        prompt = keyed_hash(self._sequences, exchange.prompt_token_ids)
        output = keyed_hash(self._sequences, exchange.token_ids)
        return SCHEME + prompt, SCHEME + output

    def exchange(self, exchange: Exchange) -> Exchange:
        """The same without IDs and text.

        Raises:
            OverflowError: an ID beyond 64 bits.
        """
        one = _Capture(self._tokens, exchange.capture_id)
        steps = exchange.steps
        drawn = one.hidden(_OUTPUT, range(len(steps)), [step.token_id for step in steps])
        counts = [len(step.top_ids) for step in steps]
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        top = one.hidden(_OUTPUT, places, list(chain.from_iterable(step.top_ids for step in steps)))
        ends = list(accumulate(counts))
        return msgspec.structs.replace(
            exchange,
            prompt_token_ids=tuple(
                one.hidden(_PROMPT, range(len(exchange.prompt_token_ids)), exchange.prompt_token_ids)
            ),
            steps=tuple(
                Step(
                    drawn[place],
                    step.logprob,
                    tuple(top[end - count : end]),
                    step.top_logprobs,
                    step.received_s,
                    None,
                )
                for place, (step, count, end) in enumerate(zip(steps, counts, ends, strict=True))
            ),
            sampling=_sampling(one, exchange.sampling),
            error=self.text(exchange.error),
            stop_reason=self.text(exchange.stop_reason),
        )

    def fork(self, capture_id: str, fork: Fork) -> Fork:
        """The same without IDs and text."""
        one = _Capture(self._tokens, capture_id)
        left, right = (_side(one, fork.fork_index, side) for side in (fork.left, fork.right))
        return msgspec.structs.replace(fork, left=left, right=right)

    def text(self, text: str | None) -> str | None:
        """That there was a text."""
        return NOT_KEPT if text else text


class _Capture:
    """The hashes of one capture's tokens."""

    def __init__(self, key: bytes, capture_id: str) -> None:
        self._key = blake2b(capture_id.encode(), key=key, digest_size=KEY_BYTES).digest()
        # ECB is one block at a time, which is what is meant: every block is another (part, place, ID).
        self._cipher = Cipher(AES256(self._key), ECB()).encryptor()  # noqa: S305 - see above

    def hidden(self, part: int, places: Sequence[int], ids: Sequence[int]) -> list[int]:
        blocks = np.empty((len(ids), 2), dtype="<i8")
        blocks[:, 0] = places
        blocks[:, 0] += part << _PART_BITS
        blocks[:, 1] = ids
        made = np.frombuffer(self._cipher.update(blocks.tobytes()), dtype="<i8").reshape(-1, 2)
        hashes: list[int] = (made[:, 0] & _BITS).tolist()
        return hashes

    def words(self, value: Any) -> str:
        return blake2b(msgspec.json.encode(value), key=self._key, digest_size=8).hexdigest()


def _side(one: _Capture, place: int, side: ForkSide) -> ForkSide:
    drawn = () if side.token_id is None else (side.token_id,)
    hashes = one.hidden(_OUTPUT, [place] * (len(drawn) + len(side.top_ids)), [*drawn, *side.top_ids])
    return msgspec.structs.replace(
        side,
        token_id=hashes[0] if drawn else None,
        text=None,
        top_ids=tuple(hashes[len(drawn) :]),
    )


def _sampling(one: _Capture, sampling: Sampling) -> Sampling:
    """What names tokens or words, as hashes: equal ones stay equal between the arms."""
    stop_ids = sampling.stop_token_ids
    return msgspec.structs.replace(
        sampling,
        stop=tuple(map(one.words, sampling.stop)),
        stop_token_ids=tuple(one.hidden(_SETTINGS, [0] * len(stop_ids), stop_ids)),
        logit_bias={one.words(name): bias for name, bias in sampling.logit_bias.items()},
        extra={name: one.words(value) for name, value in sampling.extra.items()},
    )

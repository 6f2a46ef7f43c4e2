"""``evidence.store: hashes``: what is kept when no token ID and no text may be.

Theory of operation. Two kinds of keyed hash, because an unkeyed one hides nothing: prompts are guessable and
there are only some hundred thousand token IDs, so whoever holds a plain or a salted hash tries them all.

* *Sequences*: HMAC-SHA256 over all IDs of a prompt or of an answer, with a key derived from the store's own.
  Its holder can show that a given prompt was the one that was asked; nobody else can guess.
* *Single tokens*: keyed BLAKE2b (RFC 7693) over (capture, place, ID), cut to 62 bits, with a key that is
  drawn when the store is opened and forgotten with the process. Within one capture and place equal IDs have
  equal hashes, in both arms and their top-k, which is all that alignment, margins and errors need: a fork is
  found again at its step, with its numbers. Two places or two captures have nothing in common, so that no
  frequency is left to count, and nobody, not even the key's holder, can try IDs one place at a time.

What is lost: every text (tokens, errors, stop strings), the IDs themselves, and so replay, words in
``evidence show``, and the verdicts of gates that read IDs across captures.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from comparator.evidence.keys import KEY_BYTES, Key, keyed_hash
from comparator.pair import Fork, ForkSide
from comparator.records import Exchange, Sampling, Step

NOT_KEPT = "not kept (evidence.store: hashes)"
SCHEME = "hmac-sha256:"

_PROMPT, _OUTPUT, _SETTINGS = "prompt", "output", "settings"
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
        """The same without IDs and text."""
        capture = str(exchange.capture_id)
        prompt = [
            self._token(capture, _PROMPT, place, one) for place, one in enumerate(exchange.prompt_token_ids)
        ]
        return msgspec.structs.replace(
            exchange,
            prompt_token_ids=tuple(prompt),
            steps=tuple(self._step(capture, place, step) for place, step in enumerate(exchange.steps)),
            sampling=self._sampling(capture, exchange.sampling),
            error=self.text(exchange.error),
            stop_reason=self.text(exchange.stop_reason),
        )

    def fork(self, capture_id: str, fork: Fork) -> Fork:
        """The same without IDs and text."""
        left, right = (self._side(capture_id, fork.fork_index, side) for side in (fork.left, fork.right))
        return msgspec.structs.replace(fork, left=left, right=right)

    def text(self, text: str | None) -> str | None:
        """That there was a text."""
        return NOT_KEPT if text else text

    def _step(self, capture: str, place: int, step: Step) -> Step:
        return Step(
            self._token(capture, _OUTPUT, place, step.token_id),
            step.logprob,
            self._top(capture, place, step.top_ids),
            step.top_logprobs,
            step.received_s,
            None,
        )

    def _side(self, capture: str, place: int, side: ForkSide) -> ForkSide:
        token_id = side.token_id
        return msgspec.structs.replace(
            side,
            token_id=None if token_id is None else self._token(capture, _OUTPUT, place, token_id),
            text=None,
            top_ids=self._top(capture, place, side.top_ids),
        )

    def _top(self, capture: str, place: int, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._token(capture, _OUTPUT, place, one) for one in ids)

    def _sampling(self, capture: str, sampling: Sampling) -> Sampling:
        """What names tokens or words, as hashes: equal ones stay equal between the arms."""

        def hidden(value: Any) -> str:
            return f"{self._number(f'{capture}|{_SETTINGS}|{msgspec.json.encode(value).decode()}'):x}"

        return msgspec.structs.replace(
            sampling,
            stop=tuple(hidden(one) for one in sampling.stop),
            stop_token_ids=tuple(self._token(capture, _SETTINGS, 0, one) for one in sampling.stop_token_ids),
            logit_bias={hidden(name): bias for name, bias in sampling.logit_bias.items()},
            extra={name: hidden(value) for name, value in sampling.extra.items()},
        )

    def _token(self, capture: str, part: str, place: int, token_id: int) -> int:
        return self._number(f"{capture}|{part}|{place}|{token_id}")

    def _number(self, what: str) -> int:
        return (
            int.from_bytes(blake2b(what.encode(), key=self._tokens, digest_size=8).digest(), "little") & _BITS
        )

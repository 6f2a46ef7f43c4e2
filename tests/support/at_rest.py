"""For tests of evidence at rest: prompts and answers that are easy to look for, and a look at raw bytes."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from comparator.evidence import Key, Keyring
from comparator.pair import ForkSeen, Pair
from comparator.records import Arm, Sampling
from tests.support.exchanges import pair, step

PROMPT_IDS = (31_337_001, 31_337_002, 31_337_003, 31_337_004)
"""IDs whose bytes stand nowhere by chance."""
LEFT_IDS = (41_414_141, 41_414_142, 41_414_143)
RIGHT_IDS = (41_414_141, 41_414_142, 51_515_151)
WORDS = ("Kolibri", "Zwetschge", "Quastenflosser", "Murmeltier")
"""Texts of the tokens, the last one of the token that forks."""
STOP, ERROR, REASON = "Halteschild", "upstream said: Blindschleiche", "Rueckwaertsgang"
CLUSTER = "feedc0de5eed5eed"


def key(number: int = 1) -> Key:
    """A key that every run of a test has again."""
    return Key(bytes([number]) * 32)


KEYS = Keyring(current=key(1))


def secret_pair(capture_id: str = "c", tenant: str = "acme", **changes: object) -> Pair:
    """A pair that forks at its third token, full of what must not leak."""
    sampling = Sampling(max_tokens=16, temperature=0.0, seed=5, logprobs=20, stop=(STOP,))
    words = dict(zip(LEFT_IDS, WORDS, strict=False)) | {RIGHT_IDS[-1]: WORDS[-1]}

    def side(ids: Sequence[int]) -> dict[str, object]:
        steps = [
            step(one, [(one, -0.25), (61_616_161 + place, -1.5)], received_s=0.1 * place, text=words[one])
            for place, one in enumerate(ids)
        ]
        return {
            "steps": steps,
            "prompt": PROMPT_IDS,
            "sampling": sampling,
            "tenant": tenant,
            "error": ERROR,
            "stop_reason": STOP,
            **changes,
        }

    return pair(capture_id=capture_id, left=side(LEFT_IDS), right=side(RIGHT_IDS))


def fork_of(one: Pair) -> ForkSeen:
    """The pair's fork, as it was reported."""
    assert one.fork is not None
    return ForkSeen(
        capture_id=one.capture_id,
        rollout=one.right.rollout,
        tenant=one.right.tenant,
        left_arm=Arm.BASELINE,
        right_arm=Arm.CANDIDATE,
        fork=one.fork,
    )


def needles() -> dict[str, bytes]:
    """Everything above in every encoding that is used: text, JSON, packed integers, MessagePack, base64."""
    found: dict[str, bytes] = {}
    for word in (*WORDS, STOP, "Blindschleiche", REASON, CLUSTER):
        found[f"{word} as text"] = word.encode()
        found[f"{word} as UTF-16"] = word.encode("utf-16-le")
        found[f"{word} in base64"] = base64.b64encode(b"  " + word.encode() + b"  ")[3:-5]
    for one in (*PROMPT_IDS, *LEFT_IDS, RIGHT_IDS[-1], 61_616_161):
        found[f"{one} as digits"] = str(one).encode()
        found[f"{one} in 32 bits"] = struct.pack("<I", one)
        found[f"{one} in 32 bits, big-endian"] = struct.pack(">I", one)  # MessagePack, SQLite
    found["a prompt as JSON"] = orjson.dumps(PROMPT_IDS)
    return found


def found_in(paths: Iterable[Path]) -> list[str]:
    """Which needle lies where."""
    raw = {path: path.read_bytes() for path in paths if path.is_file()}
    return [
        f"{what} in {path.name}"
        for what, needle in needles().items()
        for path, content in raw.items()
        if needle in content
    ]

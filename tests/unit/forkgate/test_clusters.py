"""A prompt that was met is never taken for a new one, and rarely the other way round."""

from __future__ import annotations

from hashlib import blake2b

from forkgate.judge.clusters import Clusters


def key(number: int) -> str:
    return blake2b(str(number).encode(), digest_size=8).hexdigest()


def test_a_key_is_new_once() -> None:
    met = Clusters()
    assert key(1) not in met
    assert not met.add(key(1))
    assert met.add(key(1))
    assert key(1) in met
    assert met.count == 1


def test_none_of_many_is_forgotten_and_few_are_taken_for_known() -> None:
    """Expected at 200,000 of 2^23 bits and 6 probes: 7e-6 a key; 60 of 20,000 would be a broken hash."""
    met = Clusters()
    met.update(key(number) for number in range(200_000))
    assert all(key(number) in met for number in range(0, 200_000, 7))
    assert sum(key(number) in met for number in range(1_000_000, 1_020_000)) < 60
    assert met.count > 199_900


def test_keys_need_no_form() -> None:
    met = Clusters()
    assert not met.add("")
    assert not met.add("ein Gespräch")
    assert "ein Gespräch" in met

from __future__ import annotations

from hashlib import blake2b

import pytest

from proxy.mirror.seeds import derive_seed, is_token_only


def test_a_seed_is_the_hash_that_the_design_names() -> None:
    digest = blake2b(b"request-1/0", key=b"global", digest_size=8).digest()
    assert derive_seed("global", "request-1") == int.from_bytes(digest, "big") % 2**31


def test_seeds_fit_31_bits_and_differ_by_request_replicate_and_key() -> None:
    seeds = {
        derive_seed(key, f"request-{number}", replicate)
        for key in ("a", "b")
        for number in range(200)
        for replicate in range(3)
    }
    assert len(seeds) == 1_200
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_token_only_share_is_near_what_was_asked_and_not_the_sampling_draw() -> None:
    requests = [f"request-{number}" for number in range(4_000)]
    drawn = [request for request in requests if is_token_only("r", request, 20.0)]
    assert 650 < len(drawn) < 950  # 800 expected, sigma 25: six sigmas
    # Of those that sampling would draw at 20 %, only a fifth is token-only: the two draws are independent.
    sampled = [
        request
        for request in requests
        if int.from_bytes(blake2b(request.encode(), key=b"r", digest_size=8).digest(), "big") < 0.2 * 2**64
    ]
    both = set(drawn).intersection(sampled)
    assert 0.1 < len(both) / len(sampled) < 0.3
    assert not any(is_token_only("r", request, 0.0) for request in requests)
    assert all(is_token_only("r", request, 100.0) for request in requests)


def test_a_key_that_no_hash_takes_is_named() -> None:
    with pytest.raises(ValueError, match="65 bytes cannot key a hash; use 64 at most"):
        derive_seed("x" * 65, "request")

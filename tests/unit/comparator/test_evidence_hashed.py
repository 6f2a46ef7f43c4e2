"""``store: hashes``: no token ID, no text, and still the same fork with the same numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from comparator.compare import compare
from comparator.evidence import EvidenceError, EvidenceReader, EvidenceStore, Kept, Keyring
from comparator.evidence.explain import explain
from comparator.evidence.export import read_comparisons
from comparator.evidence.hashed import NOT_KEPT, Hider
from comparator.evidence.keys import keyed_hash
from comparator.evidence.words import as_text
from comparator.records import Arm
from tests.support.at_rest import KEYS, LEFT_IDS, PROMPT_IDS, WORDS, found_in, key, secret_pair
from tests.unit.comparator.test_evidence_erasure import files
from tests.unit.comparator.test_evidence_seal import BYTES, batch


def opened(path: Path) -> EvidenceStore:
    return EvidenceStore(path, BYTES, keys=KEYS, kept=Kept.HASHES)


def test_hashes_without_a_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="hashes need a key"):
        EvidenceStore(tmp_path / "e", BYTES, kept=Kept.HASHES)


def test_even_with_the_key_no_token_and_no_word_can_be_had(tmp_path: Path) -> None:
    with opened(tmp_path / "e") as store:
        store.add(batch())
        shown = store.show("c")
        exported = b"".join(store.export())
        assert found_in(files(tmp_path / "e")) == []
    (tmp_path / "export").write_bytes(exported)
    # A verdict's reason is the gate's own and stays; it is sealed.
    assert {text.split(" as ")[0] for text in found_in([tmp_path / "export"])} <= {
        "Rueckwaertsgang",
        "feedc0de5eed5eed",
    }
    for stored in shown.exchanges:
        assert stored.hashed
        assert stored.prompt_sha256.startswith("hmac-sha256:")
        assert (stored.exchange.error, stored.exchange.stop_reason) == (NOT_KEPT, NOT_KEPT)
        assert {step.text for step in stored.exchange.steps} == {None}
        assert not {*stored.exchange.prompt_token_ids, *stored.exchange.token_ids} & {*PROMPT_IDS, *LEFT_IDS}
        assert len(stored.exchange.prompt_token_ids) == len(PROMPT_IDS)
    assert shown.scores[0].error == NOT_KEPT


def test_the_comparison_is_made_again_with_the_same_fork_and_numbers(tmp_path: Path) -> None:
    was = secret_pair("c")
    with opened(tmp_path / "e") as store:
        store.add(batch())
        now = store.comparison("c").pairs[0]
        seen = store.fork_seen("c-early", "baseline", "candidate", 0)
    assert was.fork is not None
    assert now.fork is not None
    assert now.valid
    assert (now.fork.fork_index, now.fork.proper_prefix) == (was.fork.fork_index, was.fork.proper_prefix)
    assert (now.max_error_nats, now.fork.max_error_nats) == (was.max_error_nats, was.fork.max_error_nats)
    assert now.fork.left.margin_nats == was.fork.left.margin_nats
    assert now.left.timing == was.left.timing
    assert seen.fork.left.token_id != was.fork.left.token_id
    assert seen.fork.left.text is None


def test_equal_streams_stay_equal_and_sampling_that_differs_differs(tmp_path: Path) -> None:
    hider = Hider(key(1))
    same = secret_pair("c")
    twin = msgspec.structs.replace(same.left, arm=Arm.CANDIDATE)
    assert compare(hider.exchange(same.left), hider.exchange(twin)).fork is None
    other = secret_pair("c", sampling=same.left.sampling.__class__(max_tokens=16, stop=("other",)))
    assert hider.exchange(same.left).sampling != hider.exchange(other.left).sampling


def test_places_captures_and_lives_have_nothing_in_common() -> None:
    hider, later = Hider(key(1)), Hider(key(1))
    repeated = secret_pair("c", prompt=(7, 7, 7, 7)).left
    ids = hider.exchange(repeated).prompt_token_ids
    assert len(set(ids)) == 4  # one token at four places: nothing to count
    assert not set(ids) & set(hider.exchange(secret_pair("d", prompt=(7, 7, 7, 7)).left).prompt_token_ids)
    assert not set(ids) & set(later.exchange(repeated).prompt_token_ids)  # nor for the key's holder to try


def test_the_keys_holder_can_show_that_a_prompt_was_the_one(tmp_path: Path) -> None:
    with opened(tmp_path / "e") as store:
        store.add(batch())
        stored = store.show("c").exchanges[0]
    sequences = key(1).derive(b"token sequences")
    assert stored.prompt_sha256 == "hmac-sha256:" + keyed_hash(sequences, PROMPT_IDS)
    assert stored.prompt_sha256 != "hmac-sha256:" + keyed_hash(key(2).derive(b"token sequences"), PROMPT_IDS)


def test_show_says_what_it_cannot_say(tmp_path: Path) -> None:
    with opened(tmp_path / "e") as store:
        store.add(batch())
        (one,) = explain(store.show("c"))
    text = as_text(one)
    assert "kept as hashes (evidence.store)" in text
    assert "nothing can be run again" in text
    assert one.replay is None
    assert one.stored_matches_recomputed is True
    assert "fork at output token 2" in text
    assert not any(word in text for word in WORDS)


def test_evidence_of_before_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES, keys=KEYS) as store:
        store.add(batch("before", 1))
    with opened(path) as store:
        store.add(batch("after", 2))
        assert store.status().kept == "hashes"
    with EvidenceReader(path, Keyring(current=key(1))) as reader:
        assert (reader.hashed("before"), reader.hashed("after")) == (False, True)
        assert reader.show("before").exchanges[0].exchange.steps[0].text == WORDS[0]


def test_an_exported_line_says_that_it_holds_hashes_and_is_compared_as_the_tokens_were(
    tmp_path: Path,
) -> None:
    told: list[tuple[int, str]] = []
    with opened(tmp_path / "e") as store:
        store.add(batch())
        lines = list(store.export())
    (back,) = read_comparisons(lines, on_hashed=lambda number, one: told.append((number, one.capture_id)))
    assert told == [(2, "c")]
    assert back.pairs[0].fork is not None
    assert back.pairs[0].fork.fork_index == 2

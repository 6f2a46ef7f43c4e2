"""Who answers at an endpoint: what counts as news, what is said once, and when a pool is not one."""

from __future__ import annotations

import pytest

from forkgate.answerer import AGAIN_S, MIXED_S, REMEMBERED, RESTLESS, Answerer, differences

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64


def told(*digests: str, every_s: float = 1.0) -> tuple[Answerer, list[bool]]:
    answerer = Answerer()
    return answerer, [answerer.told(digest, 1_000.0 + every_s * at) for at, digest in enumerate(digests)]


def test_a_digest_is_news_once_and_another_one_at_once() -> None:
    answerer, news = told(A, A, A, B, B)
    assert news == [True, False, False, True, False]
    assert answerer.environment.value == B
    assert answerer.in_answers


def test_an_answer_from_before_the_change_is_no_news() -> None:
    """Live records come in batches, several edges' one after the other."""
    answerer = Answerer()
    answerer.told(A, 1_000.0)
    answerer.told(B, 1_005.0)
    assert not answerer.told(A, 1_004.9)
    assert answerer.digest == B
    assert not answerer.mixed(1_006.0)
    assert answerer.told(A, 1_005.0 + AGAIN_S)
    assert answerer.digest == A


def test_environments_that_answer_in_turn_are_told_as_such_and_reported_now_and_then() -> None:
    answerer, news = told(*[A, B] * 20, every_s=1.0)
    assert answerer.mixed(1_040.0) == (A, B)
    assert sum(news) == 2 + 3  # both, and then once every AGAIN_S of 40 s
    assert answerer.mixed(1_040.0 + MIXED_S) == ()


def test_a_swap_and_no_way_back_is_no_mixture() -> None:
    answerer, _ = told(A, B)
    assert answerer.mixed(1_001.0) == ()


def test_ever_new_digests_are_bounded_in_memory_and_reports() -> None:
    digests = [f"sha256:{number:064x}" for number in range(10_000)]
    answerer, news = told(*digests, every_s=0.01)
    assert answerer.digest == digests[-1]
    assert sum(news) == REMEMBERED + 100.0 // AGAIN_S - 1
    assert len(answerer.mixed(1_100.0)) <= REMEMBERED


@pytest.mark.parametrize("in_answers", [True, False])
def test_a_probe_counts_where_answers_tell_none(in_answers: bool) -> None:
    answerer, _ = told(A)
    answerer.probed(B, in_answers=in_answers, at_unix_s=2_000.0)
    assert answerer.digest == (A if in_answers else B)
    assert answerer.in_answers is in_answers


def test_an_engine_that_tells_none_any_more_is_nobody() -> None:
    answerer, _ = told(A)
    answerer.probed(None, in_answers=False, at_unix_s=2_000.0)
    assert answerer.environment.unknown is not None


def lines(declared: str | None, *found: str | None) -> list[str]:
    answerers = {}
    for number, digest in enumerate(found):
        answerers[f"http://{number}"] = answerer = Answerer()
        if digest is not None:
            answerer.told(digest, 1.0)
    return list(differences("new", declared, answerers, answerers.keys(), 2.0))


def test_a_pool_of_one_environment_is_no_trouble() -> None:
    assert lines(None, A, A) == lines(A, A, A) == lines(None, None, None) == lines(None, A, None) == []


def test_endpoints_that_differ_are_named_with_their_digests() -> None:
    (line,) = lines(None, A, B, A)
    assert f"2 environments: {A} at http://0, http://2; {B} at http://1" in line


def test_each_endpoint_that_is_not_the_declared_one_is_named() -> None:
    other, silent = lines(A, A, B, None)
    assert f"http://1: {A} is declared and {B} answers" in other
    assert "http://2: " in silent
    assert "neither its answers nor its probe tell a digest" in silent


def test_an_engine_that_was_not_probed_yet_is_not_blamed() -> None:
    assert list(differences("new", A, {"http://0": Answerer()}, (), 2.0)) == []


def test_a_trouble_keeps_its_words_while_answers_go_back_and_forth() -> None:
    """It is logged when its words change."""
    balanced, other = Answerer(), Answerer()
    other.told(A, 1.0)
    said = set()
    for at in range(4, 20):
        balanced.told((A, B)[at % 2], float(at))
        said.update(differences("new", None, {"http://0": balanced, "http://1": other}, (), float(at)))
    assert len([line for line in said if "in turn" in line]) == 1
    assert len(said) == 2  # and that the two endpoints differed, before the first had come back


def test_an_endpoint_of_ever_new_digests_is_a_trouble_in_the_same_words() -> None:
    """None of them comes back, so they do not answer in turn; all of its pairs are set aside all the same."""
    liar, other = Answerer(), Answerer()
    other.told(A, 1.0)
    said = set()
    for at in range(2, 60):
        liar.told(f"sha256:{at:064x}", float(at))
        if at >= 10:
            said.update(differences("new", None, {"http://0": liar, "http://1": other}, (), float(at)))
    (line,) = said
    assert "http://0: its answers tell ever new digests" in line
    assert list(differences("new", None, {"http://0": liar}, (), 60.0 + MIXED_S)) == []


def test_an_engine_that_is_swapped_a_few_times_is_not_restless() -> None:
    engine = Answerer()
    for at in range(RESTLESS - 1):
        engine.told(f"sha256:{at:064x}", 1.0 + at)
    assert not engine.restless(10.0)

"""What is kept of marked requests: told once, forgotten in time, and bounded whoever asks for how much."""

from __future__ import annotations

import pytest

from engines.vllm_plugin import book as module
from engines.vllm_plugin.book import EXPIRY_S, MOST_REQUESTS, MOST_RUNS, Book, Missing, Trouble
from engines.vllm_plugin.channel import CLASH, CROWD


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> Book:
    return Book(clock)


def opened(book: Book, name: str) -> bytes:
    key = book.open(name)
    assert key is not None
    return key


def test_the_steps_of_a_request_are_told_once(book: Book) -> None:
    key = opened(book, "a/b")
    book.note(key, 0, 1, 0)
    book.note(key, 4, 2, 1)
    book.end(key)
    assert book.take("a/b") == {
        "record": "batch/1",
        "request_id": "a/b",
        "runs": [[0, 1, 0], [4, 2, 1]],
    }
    with pytest.raises(Missing):
        book.take("a/b")
    assert len(book) == 0


def test_equal_neighbours_are_one_run_and_a_later_telling_of_a_token_holds(book: Book) -> None:
    key = opened(book, "a")
    for position, size, place in [(0, 1, 0), (0, 2, 0), (1, 2, 0), (5, 3, 1), (9, 4, 1), (5, 7, 2)]:
        book.note(key, position, size, place)
    assert book.take("a")["runs"] == [[0, 2, 0], [5, 7, 2]]


def test_they_can_be_asked_for_while_the_answers_last_byte_is_on_its_way(book: Book) -> None:
    key = opened(book, "a")
    book.note(key, 0, 1, 0)
    assert book.take("a")["runs"] == [[0, 1, 0]]
    assert book.open_requests == 0
    book.note(key, 1, 2, 0)
    book.end(key)  # its end comes after the question
    assert (len(book), book.open_requests) == (0, 0)


def test_keys_that_nobody_opened_leave_nothing(book: Book) -> None:
    book.note(bytes(16), 0, 1, 0)
    book.end(bytes(16))
    assert len(book) == 0


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 257, "\x00", "a\r\nb"])
def test_hostile_ids_are_neither_followed_nor_found(book: Book, name: str) -> None:
    assert book.open(name) is None
    with pytest.raises(Missing):
        book.take(name)
    assert len(book) == 0


def test_what_nobody_asks_for_is_forgotten(book: Book, clock: Clock) -> None:
    keys = [opened(book, f"r{place}") for place in range(50)]
    for key in keys:
        book.end(key)
        clock.now_s += 1
    running = opened(book, "running")
    clock.now_s += EXPIRY_S - 10
    book.expire()
    assert len(book) == 10 + 1
    clock.now_s += 10_000
    with pytest.raises(Missing, match="over 60 s ago"):
        book.take("r49")
    assert len(book) == 1  # a request that still runs is not forgotten
    book.note(running, 0, 1, 0)
    assert book.take("running")["runs"]


def test_the_longest_ended_makes_room_and_running_ones_do_not(book: Book) -> None:
    first, second = opened(book, "first"), opened(book, "second")
    book.end(second)
    book.end(first)
    for place in range(MOST_REQUESTS - 2):
        opened(book, f"r{place}")
    opened(book, "one-more")
    with pytest.raises(Missing):
        book.take("second")
    assert len(book) == MOST_REQUESTS
    opened(book, "and-one")
    assert book.open("too-many") is None
    assert len(book) == book.open_requests == MOST_REQUESTS


def test_an_id_that_comes_again_after_its_end_begins_anew(book: Book) -> None:
    key = opened(book, "a")
    book.note(key, 0, 9, 9)
    book.end(key)
    assert opened(book, "a") == key
    book.note(key, 0, 1, 0)
    assert book.take("a")["runs"] == [[0, 1, 0]]


def test_two_requests_of_one_id_at_a_time_are_known_of_neither(book: Book) -> None:
    key = opened(book, "a")
    book.note(key, 0, 1, 0)
    assert book.open("a") is None
    book.note(key, 0, 2, 1)
    book.end(key)
    assert book.take("a") == {"record": "batch/1", "request_id": "a", "unknown": Trouble.CLASH}


@pytest.mark.parametrize(("flags", "trouble"), [(CLASH, Trouble.CLASH), (CROWD, Trouble.CROWD)])
def test_what_the_engine_could_not_tell_is_told_as_such(book: Book, flags: int, trouble: Trouble) -> None:
    key = opened(book, "a")
    book.note(key, 0, 1, 0)
    book.note(key, 0, 0, 0, flags)
    book.note(key, 3, 1, 0)
    assert book.take("a")["unknown"] == trouble


def test_lost_records_spoil_what_runs_and_nothing_else(book: Book) -> None:
    ended, running = opened(book, "ended"), opened(book, "running")
    book.note(ended, 0, 1, 0)
    book.note(running, 0, 1, 0)
    book.end(ended)
    book.lose()
    assert book.take("ended")["runs"] == [[0, 1, 0]]
    assert book.take("running")["unknown"] == Trouble.LOST
    fresh = opened(book, "fresh")
    book.note(fresh, 0, 1, 0)
    assert book.take("fresh")["runs"]


def test_a_request_whose_batch_never_rests_is_given_up(book: Book) -> None:
    key = opened(book, "a")
    for position in range(MOST_RUNS + 1):
        book.note(key, position, 1 + position % 2, 0)
    assert book.take("a")["unknown"] == Trouble.LONG


def test_all_requests_together_are_bounded_and_what_they_held_is_given_back(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RUNS_IN_ALL", 100)
    keys = [opened(book, f"r{place}") for place in range(4)]
    for key in keys:
        for position in range(40):
            book.note(key, position, 1 + position % 2, 0)
    told = [book.take(f"r{place}") for place in range(4)]
    assert ["unknown" in one for one in told] == [False, False, True, True]
    assert book._runs == 0


def test_an_engine_without_a_channel_is_named_as_the_reason(book: Book) -> None:
    key = book.open("a", Trouble.DEAF)
    assert key is not None
    book.end(key)
    assert book.take("a")["unknown"] == Trouble.DEAF

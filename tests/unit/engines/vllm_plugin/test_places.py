"""Rows of a running batch, followed as vLLM's runners tell them. A model of the batch says what is true."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from engines.vllm_plugin.channel import CLASH, CROWD
from engines.vllm_plugin.marks import MARK, check, key_of, mark_of
from engines.vllm_plugin.places import MOST_MARKED, BatchRows, BatchSlots


class How(enum.Enum):
    """As vLLM's MoveDirectionality."""

    UNIDIRECTIONAL = enum.auto()
    SWAP = enum.auto()


class Params(NamedTuple):
    extra_args: dict[str, Any] | None = None


class Update(NamedTuple):
    """As vLLM's BatchUpdate."""

    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[tuple[int, Params, list[int] | None, list[int]]] = ()
    moved: Sequence[tuple[int, int, How]] = ()


class Told:
    """What was told, in the book's own reading: key → position → (size, place)."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, int, int, int, int]] = []

    def __call__(self, key: bytes, position: int, batch_size: int, place: int, flags: int = 0) -> None:
        self.calls.append((key, position, batch_size, place, flags))


def marked(name: str) -> Params:
    return Params({MARK: name})


def key(name: str) -> bytes:
    found = key_of(name)
    assert found is not None
    return found


def test_nobody_marked_nothing_told() -> None:
    told = Told()
    rows = BatchRows(told)
    rows.update(Update(2, added=[(0, Params(), [1], []), (1, Params({"other": 1}), [1], [])]))
    rows.update(Update(1, removed=[1]))
    assert (told.calls, len(rows)) == ([], 0)


def test_one_request_that_neighbours_join_and_leave() -> None:
    told = Told()
    rows = BatchRows(told)
    output: list[int] = []
    rows.update(Update(1, added=[(0, marked("a"), [1, 2], output)]))
    output += [5, 6, 7]
    rows.update(Update(3, added=[(1, Params(), [1], []), (2, Params(), [1], [])]))
    output += [8]
    rows.update(Update(2, removed=[2]))
    rows.update(Update(2, removed=[], added=[(1, Params(), [1], [])]))  # another neighbour, same place
    assert told.calls == [(key("a"), 0, 1, 0, 0), (key("a"), 3, 3, 0, 0), (key("a"), 4, 2, 0, 0)]


def test_a_prompt_read_in_pieces_tells_its_last_piece_last() -> None:
    told = Told()
    rows = BatchRows(told)
    output: list[int] = []
    rows.update(Update(1, added=[(0, marked("a"), [1] * 900, output)]))
    rows.update(Update(2, added=[(1, Params(), [1], [])]))  # no token yet: the second pass of the prompt
    output.append(4)
    rows.update(Update(1, removed=[1]))
    assert told.calls == [(key("a"), 0, 1, 0, 0), (key("a"), 0, 2, 0, 0), (key("a"), 1, 1, 0, 0)]


def test_two_swap_places() -> None:
    told = Told()
    rows = BatchRows(told)
    rows.update(Update(2, added=[(0, marked("a"), [1], [1]), (1, marked("b"), [1], [1, 2])]))
    rows.update(Update(2, moved=[(0, 1, How.SWAP)]))
    assert told.calls[2:] == [(key("b"), 2, 2, 0, 0), (key("a"), 1, 2, 1, 0)] or told.calls[2:] == [
        (key("a"), 1, 2, 1, 0),
        (key("b"), 2, 2, 0, 0),
    ]


def test_a_preempted_request_comes_back_at_the_token_it_had_reached() -> None:
    told = Told()
    rows = BatchRows(told)
    rows.update(Update(1, added=[(0, marked("a"), [1], [])]))
    rows.update(Update(0, removed=[0]))
    rows.update(Update(4, added=[(3, marked("a"), [1], [7, 8, 9])]))
    assert told.calls == [(key("a"), 0, 1, 0, 0), (key("a"), 3, 4, 3, 0)]


def test_two_of_one_mark_are_told_as_a_clash_and_leave_no_trace() -> None:
    told = Told()
    rows = BatchRows(told)
    rows.update(Update(2, added=[(0, marked("a"), [1], []), (1, marked("a"), [1], [])]))
    assert (key("a"), 0, 0, 0, CLASH) in told.calls
    rows.update(Update(0, removed=[1, 0]))
    assert len(rows) == 0
    told.calls.clear()
    rows.update(Update(1, added=[(0, marked("a"), [1], [])]))
    assert told.calls == [(key("a"), 0, 1, 0, 0)]


def test_a_crowd_of_marked_requests_is_bounded_and_the_rest_hear_why() -> None:
    told = Told()
    rows = BatchRows(told)
    names = [f"r{place}" for place in range(MOST_MARKED + 3)]
    rows.update(
        Update(len(names), added=[(place, marked(name), [1], []) for place, name in enumerate(names)])
    )
    assert len(rows) == MOST_MARKED
    refused = [call for call in told.calls if call[4] == CROWD]
    assert [call[0] for call in refused] == [key(name) for name in names[MOST_MARKED:]]


@pytest.mark.parametrize("seed", range(20))
def test_any_history_of_a_batch_is_followed(seed: int) -> None:
    """A batch kept as vLLM keeps it (``gpu_input_batch``): freed rows filled by newcomers, else by the last
    ones, then pairs swapped by the attention backend. Each marked request's own account is compared."""
    draw = random.Random(seed)
    told = Told()
    rows = BatchRows(told)
    batch: list[tuple[str, list[int]]] = []
    truth: dict[str, list[tuple[int, int]]] = {}
    is_marked: dict[str, bool] = {}
    born = 0
    for _ in range(120):
        removed = sorted(draw.sample(range(len(batch)), draw.randint(0, min(2, len(batch)))), reverse=True)
        slots: list[tuple[str, list[int]] | None] = [
            None if place in removed else one for place, one in enumerate(batch)
        ]
        free = sorted(removed)
        added: list[tuple[int, Params, list[int] | None, list[int]]] = []
        for _ in range(draw.choice([0, 0, 1, 2])):
            name, output = f"r{born}", list[int]()
            born += 1
            is_marked[name] = draw.random() < 0.5
            place = free.pop(0) if free else len(slots)
            slots[place : place + 1] = [(name, output)]
            added.append((place, marked(name) if is_marked[name] else Params(), [1], output))
        moved: list[tuple[int, int, How]] = []
        while free:
            while slots and slots[-1] is None:
                slots.pop()
            empty = free.pop(0)
            if empty >= len(slots):
                continue
            moved.append((len(slots) - 1, empty, How.UNIDIRECTIONAL))
            slots[empty] = slots.pop()
        while slots and slots[-1] is None:
            slots.pop()
        left = [place for place in removed if place >= len(slots) or place in free]
        batch = [one for one in slots if one is not None]
        assert len(batch) == len(slots)
        if len(batch) > 1 and draw.random() < 0.2:
            one, other = draw.sample(range(len(batch)), 2)
            batch[one], batch[other] = batch[other], batch[one]
            moved.append((one, other, How.SWAP))
        if left or added or moved:
            rows.update(Update(len(batch), left, added, moved))
        for place, (name, output) in enumerate(batch):
            truth.setdefault(name, []).append((len(batch), place))
            output.append(0)
    for name, steps in truth.items():
        runs = [call for call in told.calls if call[0] == key(name)]
        assert bool(runs) == is_marked[name]
        if runs:
            account: list[tuple[int, int]] = []
            for _, position, size, place, flags in runs:
                assert flags == 0
                account[position:] = account[-1:] * (position - len(account))
                account[position:] = [(size, place)]
            account += account[-1:] * (len(steps) - len(account))
            assert account == steps


def test_slots_are_followed_by_the_order_of_each_step() -> None:
    told = Told()
    prompts = [0] * 8
    slots = BatchSlots(told, prompts)
    prompts[5], prompts[2] = 10, 4
    assert slots.add(5, marked("a").extra_args)
    assert not slots.add(2, None)
    slots.step([5], [6])  # a piece of the prompt
    slots.step([2, 5], [4, 10])  # its end: the first token
    slots.step([2, 5], [5, 11])
    slots.step([5], [12])
    assert told.calls == [(key("a"), 0, 1, 0, 0), (key("a"), 0, 2, 1, 0), (key("a"), 2, 1, 0, 0)]


def test_a_slot_that_is_given_anew_forgets_whose_it_was() -> None:
    told = Told()
    slots = BatchSlots(told, [1] * 8)
    slots.add(3, marked("a").extra_args)
    slots.add(3, None)
    slots.step([3], [1])
    assert (told.calls, len(slots)) == ([], 0)


def test_a_mark_that_comes_again_is_followed_in_its_new_slot() -> None:
    told = Told()
    slots = BatchSlots(told, [1] * 8)
    slots.add(3, marked("a").extra_args)
    slots.step([3], [1])
    slots.add(4, marked("a").extra_args)
    slots.step([4], [1])
    assert (told.calls, len(slots)) == ([(key("a"), 0, 1, 0, 0)] * 2, 1)


HOSTILE = [5, 1.5, "", " ", "a b", "a\n", "é", "x" * 257, ["a"], {"a": 1}, None, b"bytes", True, "\x00"]


@pytest.mark.parametrize("mark", HOSTILE)
def test_a_mark_that_is_no_id_marks_nothing_and_is_refused_at_the_door(mark: object) -> None:
    assert mark_of({MARK: mark}) is None
    with pytest.raises(ValueError, match=r"vllm_xargs\.forkgate_batch: must be the request's x-request-id"):
        check({MARK: mark})


def test_requests_without_a_mark_pass_the_door() -> None:
    for extra_args in (None, {}, {"other": 5}, {MARK: "01a2/baseline/0"}):
        check(extra_args)

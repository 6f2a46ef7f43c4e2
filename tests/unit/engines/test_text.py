"""Token IDs to text: whole characters only, nothing of a stop string."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from engines.reference.model import LoadedModel
from engines.reference.text import TextOut


def told(tiny: LoadedModel, text: str, stops: Sequence[str] = ()) -> tuple[list[str], str | None]:
    """Push a text byte by byte (the tiny tokenizer's tokens are bytes); pieces given, stop met."""
    out = TextOut(tiny.tokenizer, tiny.tokenizer.encode("before "), stops)
    pieces: list[str] = []
    for token_id in tiny.tokenizer.encode(text):
        piece, stop = out.push(token_id, may_stop=True)
        pieces.append(piece)
        if stop is not None:
            return pieces, stop
    pieces.append(out.finish())
    return pieces, None


@pytest.mark.parametrize("text", ["plain words", "é漢字🙂 end", "  spaces  \n\n", "a", "👨‍👩‍👧 family"])
def test_pieces_join_to_the_text_and_hold_whole_characters(tiny: LoadedModel, text: str) -> None:
    pieces, _ = told(tiny, text)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_that_is_never_finished_is_told_as_such_at_the_end(tiny: LoadedModel) -> None:
    out = TextOut(tiny.tokenizer, (), ())
    pieces = [out.push(token_id, may_stop=True)[0] for token_id in tiny.tokenizer.encode("é")[:1]]
    assert "".join(pieces) == ""
    assert out.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("text", "stops", "before", "met"),
    [
        ("one two three", ["two"], "one ", "two"),
        ("one two three", ["o t", "one"], "", "one"),
        ("aaab", ["aab"], "a", "aab"),
        ("ababac", ["abac"], "ab", "abac"),
        ("x stop", ["sto", "stop"], "x ", "sto"),
        ("é漢 end", ["漢"], "é", "漢"),
        ("no match here", ["zzz", "here!"], "no match here", None),
        ("ends in half a sto", ["stop"], "ends in half a sto", None),
    ],
)
def test_nothing_of_a_stop_string_is_given_out(
    tiny: LoadedModel, text: str, stops: list[str], before: str, met: str | None
) -> None:
    pieces, stop = told(tiny, text, stops)
    assert ("".join(pieces), stop) == (before, met)
    # Whatever was given out at any moment was never to be taken back.
    for so_far in itertools.accumulate(pieces):
        assert before.startswith(so_far)


def test_before_min_tokens_a_stop_string_is_plain_text(tiny: LoadedModel) -> None:
    out = TextOut(tiny.tokenizer, (), ["b"])
    a, b, c = tiny.tokenizer.encode("abc")
    given = [out.push(a, may_stop=False)[0], out.push(b, may_stop=False)[0]]
    piece, stop = out.push(c, may_stop=True)
    assert (stop, "".join([*given, piece])) == (None, "abc")


def test_special_tokens_have_no_text(tiny: LoadedModel) -> None:
    out = TextOut(tiny.tokenizer, (), ())
    assert out.push(tiny.eos_token_ids[0], may_stop=True) == ("", None)
    assert out.push(tiny.tokenizer.encode("a")[0], may_stop=True) == ("a", None)

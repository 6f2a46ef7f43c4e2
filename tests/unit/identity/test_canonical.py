"""RFC 8785: the vectors of its own text, and what it refuses."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from engines.identity.canonical import CanonicalError, canonical, digest_of, parse

# RFC 8785, appendix B, table 1: the double's bits and its text.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_read_as_in_appendix_b(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value).decode() == text


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_appendix_b_numbers_that_are_none_are_refused_with_their_place(bits: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(CanonicalError, match=r"^\$\.limits\[1\]: .* has no JSON form"):
        canonical({"limits": [0, value]})


def test_the_sample_of_section_3_2_gives_the_bytes_of_section_3_2_4() -> None:
    text = r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    expected = bytes.fromhex(
        "7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c226e756d62657273223a"
        "5b3333333333333333332e333333333333332c31652b33302c342e352c302e3030322c31652d3237"
        "5d2c22737472696e67223a22e282ac245c75303030665c6e4127425c225c5c5c5c5c222f227d"
    )
    assert canonical(parse(text)) == expected


def test_keys_stand_in_the_order_of_their_utf16_units_as_in_section_3_2_3() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(parse(canonical(value)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_only_controls_quote_and_backslash_are_escaped() -> None:
    assert (
        canonical('\b\t\n\f\r\x00\x1f\x7f"\\/\u2028é')
        == '"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f\\"\\\\/\u2028é"'.encode()
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 2**53 + 1}, r"^\$\.a: the integer 9007199254740993 is beyond 2\^53"),
        ({"a": [-(2**53) - 1]}, r"^\$\.a\[0\]: the integer -9007199254740993"),
        ({"name": "x\ud800"}, r"^\$\.name: the text holds the lone surrogate U\+D800"),
        ({"\udfff": 1}, r"^\$: the text holds the lone surrogate U\+DFFF"),
    ],
)
def test_values_that_readers_would_not_agree_on_are_refused(value: Any, message: str) -> None:
    with pytest.raises(CanonicalError, match=message):
        canonical(value)


@pytest.mark.parametrize(
    ("value", "message"), [({1: 2}, r"the key 1 is a int"), ([b"x"], r"^\$\[0\]: a bytes")]
)
def test_values_that_are_not_json_are_refused(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        canonical(value)


def test_an_integer_and_its_double_are_one_number() -> None:
    assert canonical([2**53, 2.0**53, 10, 1e1, -0.0]) == b"[9007199254740992,9007199254740992,10,10,0]"


def test_a_value_nested_without_end_is_refused_and_not_a_crash() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(CanonicalError, match="nested too deeply"):
        canonical(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ('{"a": ', "line 1, column 7"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        ("[" * 200_000, "nested too deeply"),
        ("9" * 5000, "digits"),
    ],
)
def test_text_that_two_readers_could_read_differently_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(CanonicalError, match=message):
        parse(text)


def test_the_digest_is_the_sha256_of_the_canonical_bytes() -> None:
    assert digest_of({"b": 1, "a": 2}) == "sha256:" + hashlib.sha256(b'{"a":2,"b":1}').hexdigest()

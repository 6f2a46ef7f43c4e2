"""Canonical JSON after RFC 8785 (JSON Canonicalization Scheme): one value, one sequence of bytes.

A digest over JSON is worth something only where everybody gets the same bytes, in any language. The scheme
fixes what JSON leaves open: no white space, keys in the order of their UTF-16 code units, strings with the
shortest escapes, numbers as ECMAScript prints a double.

What has no such form is refused, never bent: NaN and the infinities, integers that a double cannot tell
apart, lone surrogates, keys that are no strings. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

# RFC 8785 takes numbers as IEEE 754 doubles: past 2^53 two neighbouring integers are one double.
LARGEST_INTEGER = 2**53
# Where Number::toString goes over to an exponent (ECMA-262, section 6.1.6.1.20).
_LARGEST_PLAIN_EXPONENT = 21
_SMALLEST_PLAIN_EXPONENT = -6


class CanonicalError(ValueError):
    """A value without a canonical form; the message names its place, e.g. ``$.files[2].bytes``."""


def canonical(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value (None, bool, int, float, str, list or tuple, mapping).

    Raises:
        CanonicalError: a number that is not finite or not exact as a double, a lone surrogate, too deep.
        TypeError: something that is not JSON.
    """
    out: list[str] = []
    try:
        _write(value, "$", out)
    except RecursionError:
        raise CanonicalError("the value is nested too deeply for a canonical form") from None
    return "".join(out).encode("utf-8")


def digest_of(value: Any) -> str:
    """``sha256:`` and 64 hex digits over :func:`canonical`; raises as it does."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def parse(text: str | bytes) -> Any:
    """JSON text as a value that :func:`canonical` takes; stricter than :func:`json.loads`.

    Duplicate keys, ``NaN`` and ``Infinity`` are refused: two readers could make different values of them.
    What :func:`canonical` has written reads back as what it was: a double past 2^53 stays one.

    Raises:
        CanonicalError: not JSON, or one of the above; the message says where.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object_once,
            parse_int=_integer_or_double,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise CanonicalError(f"not JSON: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise CanonicalError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise CanonicalError("not JSON that can be read here: nested too deeply") from None
    except CanonicalError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise CanonicalError(f"not JSON that can be read here: {error}") from None


def _object_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise CanonicalError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _integer_or_double(text: str) -> int | float:
    value = int(text)
    if abs(value) <= LARGEST_INTEGER or len(text) > _LARGEST_PLAIN_EXPONENT + 1:
        return value
    double = float(value)
    # Left an integer, it is refused with its place, unless it is the text of just that double.
    return double if _number(double, "$") == text else value


def _refuse_constant(name: str) -> Any:
    raise CanonicalError(f"{name} is not JSON")


def _write(value: Any, place: str, out: list[str]) -> None:
    # A bool is an int to Python, so it comes first.
    if isinstance(value, str):
        out.append(_string(value, place))
    elif value is None:
        out.append("null")
    elif value is True:
        out.append("true")
    elif value is False:
        out.append("false")
    elif isinstance(value, int):
        out.append(_integer(value, place))
    elif isinstance(value, float):
        out.append(_number(value, place))
    elif isinstance(value, Mapping):
        _object(value, place, out)
    elif isinstance(value, list | tuple):
        out.append("[")
        for index, item in enumerate(value):
            if index:
                out.append(",")
            _write(item, f"{place}[{index}]", out)
        out.append("]")
    else:
        raise TypeError(f"{place}: a {type(value).__name__} is not JSON")


def _object(value: Mapping[Any, Any], place: str, out: list[str]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{place}: the key {key!r} is a {type(key).__name__}, JSON has only strings")
        _refuse_surrogates(key, place)
    out.append("{")
    # Section 3.2.3: by UTF-16 code units, so that U+1F600 (a surrogate pair) stands before U+FB33.
    for index, key in enumerate(sorted(value, key=_utf16)):
        if index:
            out.append(",")
        out.append(encode_basestring(key))
        out.append(":")
        _write(value[key], f"{place}.{key}", out)
    out.append("}")


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _string(value: str, place: str) -> str:
    _refuse_surrogates(value, place)
    # Section 3.2.2.2: \b \t \n \f \r \" \\, other controls as \u00xx in lower case, all else as it is.
    return encode_basestring(value)


def _refuse_surrogates(value: str, place: str) -> None:
    if value.isascii():
        return
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise CanonicalError(
            f"{place}: the text holds the lone surrogate U+{code:04X}, which has no UTF-8 form"
        ) from None


def _integer(value: int, place: str) -> str:
    if abs(value) > LARGEST_INTEGER:
        raise CanonicalError(
            f"{place}: the integer {value} is beyond 2^53, where JSON readers no longer agree; "
            "write it as a string"
        )
    return int.__repr__(value)


def _number(value: float, place: str) -> str:
    """ECMA-262 ``Number::toString`` (section 6.1.6.1.20); Python's repr finds the same shortest digits."""
    if value != value or value in (float("inf"), float("-inf")):
        raise CanonicalError(f"{place}: {value} has no JSON form")
    if value == 0:
        return "0"  # of minus zero too
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS x 10^point; the specification calls it n.
    point = len(digits) - len(fraction) + int(exponent or "0")
    digits = digits.rstrip("0")
    return sign + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= _LARGEST_PLAIN_EXPONENT:
        return digits + "0" * (point - count)
    if 0 < point <= _LARGEST_PLAIN_EXPONENT:
        return f"{digits[:point]}.{digits[point:]}"
    if _SMALLEST_PLAIN_EXPONENT < point <= 0:
        return "0." + "0" * -point + digits
    mantissa = digits[0] + ("." + digits[1:] if count > 1 else "")
    return f"{mantissa}e{point - 1:+d}"

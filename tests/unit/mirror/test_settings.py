from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from proxy.mirror.settings import MirrorSettings


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("percent", 150, "percent: 150 is outside 0-100"),
        ("percent", -1, "percent: -1 is outside 0-100"),
        ("percent", math.nan, "percent: nan is outside 0-100"),
        ("max_tokens", 0, "max_tokens: 0 is outside 1-1048576"),
        ("in_flight", 0, "in_flight: 0 is outside 1-4096"),
        ("tokens_per_second", 0.0, "tokens_per_second: 0 is outside 0-1000000000 (0 excluded)"),
        ("queue_age_s", 0, "queue_age_s: 0 is outside 0-86400 (0 excluded)"),
        ("arm_timeout_s", math.inf, "arm_timeout_s: inf is outside 0-86400 (0 excluded)"),
        ("tenant_share_percent", 101, "tenant_share_percent: 101 is outside 0-100 (0 excluded)"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_range(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        MirrorSettings(**{field: value})
    assert str(caught.value) == message


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `percnt`"):
        msgspec.convert({"percnt": 5}, MirrorSettings)


def test_every_limit_is_in_the_schema() -> None:
    (schema,) = msgspec.json.schema(MirrorSettings)["$defs"].values()
    for name, field in schema["properties"].items():
        assert {"minimum", "exclusiveMinimum"}.intersection(field), name
        assert "maximum" in field, name

"""One capture as one line of JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from comparator.evidence.rows import Shown


def export_line(shown: Shown) -> bytes:
    """UTF-8 JSON and a newline. Finite floats read back to the same bits (shortest round-trip form)."""
    return msgspec.json.encode(json_safe(msgspec.to_builtins(shown))) + b"\n"


def json_safe(value: Any) -> Any:
    """``value`` with NaN and the infinities as the strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.

    JSON lacks them; encoders write ``null`` or fail, and either would hide what an engine said.
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value

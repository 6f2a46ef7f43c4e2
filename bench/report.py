"""The figures of the bench, the bars they are held to, and how they are told."""

from __future__ import annotations

import enum
from typing import IO

import msgspec
import orjson

from bench.stats import Estimate


class Verdict(enum.StrEnum):
    HOLDS = "holds"
    MISSED = "missed"
    VOID = "void"
    """The interval is too wide to say; only where the figure must have one."""
    NO_BAR = "no bar"
    """Told for information."""
    FAILED = "failed"
    """Could not be measured; the reason stands in its detail."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure is held to."""

    meaning: str
    unit: str
    at_most: float | None = None
    below: float | None = None
    at_least: float | None = None
    needs_interval: bool = False
    """Void when its interval is too wide (see :data:`bench.stats.VOID_HALF_WIDTH`)."""

    def met_by(self, value: float) -> bool | None:
        """None without a bar."""
        if self.at_most is not None:
            return value <= self.at_most
        if self.below is not None:
            return value < self.below
        if self.at_least is not None:
            return value >= self.at_least
        return None

    @property
    def words(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        if self.below is not None:
            return f"< {self.below:g}"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "-"


BARS: dict[str, Bar] = {
    "cpu_passthrough_vs_envoy": Bar(
        meaning="CPU of a request passed through, over Envoy's plain route", unit="×", at_most=0.6
    ),
    "cpu_sampled10_vs_envoy": Bar(
        meaning="CPU of a request with 10 % sampled, over Envoy's plain route", unit="×", at_most=1.0
    ),
    "cpu_sampled100_vs_envoy_mirror": Bar(
        meaning="CPU of a request with 100 % sampled, over Envoy mirroring 100 %", unit="×", at_most=1.0
    ),
    "cpu_chunk_vs_envoy": Bar(
        meaning="CPU of an SSE chunk, 200 paced streams, over Envoy's", unit="×", at_most=0.9
    ),
    "p50_vs_envoy": Bar(
        meaning="median latency at a fixed open rate, over Envoy's",
        unit="×",
        at_most=1.0,
        needs_interval=True,
    ),
    "p99_vs_envoy": Bar(
        meaning="p99 latency at a fixed open rate, over Envoy's", unit="×", at_most=1.0, needs_interval=True
    ),
    "stalled_candidate_p99": Bar(
        meaning="live p99 with a stalled candidate, over no shadow",
        unit="×",
        at_most=1.05,
        needs_interval=True,
    ),
    "flip_p95_ms": Bar(
        meaning="p95 from a breach to the last of 4 acknowledgements, fsync apart", unit="ms", below=50
    ),
    "flip_fsync_ms": Bar(meaning="median fsync of the rollback latch within a flip", unit="ms"),
    "edge_kib_per_stream": Bar(meaning="edge memory of an idle stream", unit="KiB"),
    "endless_candidate_growth_mib": Bar(
        meaning="growth of an edge under an endless candidate", unit="MiB", below=1
    ),
    "judge_pairs_per_s": Bar(
        meaning="pairs (64 tokens, top-20) per second of judge CPU, socket to committed row",
        unit="/s",
        at_least=150,
    ),
    "cpu_vllm_router_vs_envoy": Bar(
        meaning="CPU of a request through vllm-router, over Envoy's plain route", unit="×"
    ),
}
"""In the order of the table. The last one is for information only."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured number and what stands behind it."""

    key: str
    value: float | None
    """None when it could not be measured."""
    interval: tuple[float, float] | None = None
    """Bootstrap 90 % interval over blocks."""
    too_wide: bool = False
    detail: dict[str, object] = {}

    @classmethod
    def of(cls, key: str, estimate: Estimate, detail: dict[str, object]) -> Figure:
        return cls(
            key=key,
            value=estimate.value,
            interval=(estimate.low, estimate.high),
            too_wide=estimate.too_wide,
            detail={"blocks": estimate.blocks, **detail},
        )

    @property
    def verdict(self) -> Verdict:
        bar = BARS[self.key]
        if self.value is None:
            return Verdict.FAILED
        if bar.needs_interval and self.too_wide:
            return Verdict.VOID
        met = bar.met_by(self.value)
        if met is None:
            return Verdict.NO_BAR
        return Verdict.HOLDS if met else Verdict.MISSED


def as_json(figures: list[Figure], about: dict[str, object]) -> str:
    """One line: the keys hold plain numbers; bars, verdicts, intervals and details stand beside them."""
    document: dict[str, object] = {figure.key: _rounded(figure.value) for figure in figures}
    document["holds"] = {figure.key: _holds(figure.verdict) for figure in figures}
    document["verdicts"] = {figure.key: figure.verdict.value for figure in figures}
    document["bars"] = {figure.key: BARS[figure.key].words for figure in figures}
    document["intervals"] = {
        figure.key: [_rounded(end) for end in figure.interval] for figure in figures if figure.interval
    }
    document["detail"] = {figure.key: _rounded(figure.detail) for figure in figures}
    document["about"] = about
    return orjson.dumps(document).decode()


def _holds(verdict: Verdict) -> bool | None:
    return {Verdict.HOLDS: True, Verdict.MISSED: False}.get(verdict)


def _rounded(value: object) -> object:
    """Six significant digits: no more is known."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def print_table(figures: list[Figure], out: IO[str]) -> None:
    """For people."""
    rows = [("figure", "value", "90 % interval", "bar", "", "meaning")]
    for figure in figures:
        bar = BARS[figure.key]
        value = "-" if figure.value is None else f"{figure.value:.3g} {bar.unit}"
        span = "" if figure.interval is None else f"{figure.interval[0]:.3g} - {figure.interval[1]:.3g}"
        rows.append((figure.key, value, span, bar.words, figure.verdict.value, bar.meaning))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        out.write("  ".join([*cells, row[-1]]).rstrip() + "\n")
    for figure in figures:
        if figure.verdict is Verdict.FAILED:
            out.write(f"{figure.key}: {figure.detail.get('reason')}\n")

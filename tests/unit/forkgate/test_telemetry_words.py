"""What may leave: constant sentences, names and numbers; and a page of documentation that lists all of it."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from opentelemetry.sdk._logs import LogRecordProcessor, ReadWriteLogRecord
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

import forkgate
from comparator.records import Fact, Outcome
from forkgate.telemetry import Instruments, RolloutObserved, Tenants
from forkgate.telemetry.logs import OURS, OtlpHandler
from policies.verdict import Answer, Verdict
from tests.support.exchanges import comparison, live, pair
from tests.unit.forkgate.test_telemetry import observed

ROOT = Path(forkgate.__file__).parents[1]
SECRET = "zebra crossing"
_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}


def sentences() -> Iterator[tuple[str, ast.expr]]:
    """The first argument of every logging call in our packages."""
    for package in OURS:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in _CALLS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id.lower().strip("_") in ("log", "logger")
                ):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node.args[0]


def test_a_log_lines_sentence_is_a_constant_since_it_leaves_the_machine() -> None:
    found = list(sentences())
    assert len(found) > 50
    for where, sentence in found:
        choices = [sentence.body, sentence.orelse] if isinstance(sentence, ast.IfExp) else [sentence]
        assert all(isinstance(one, ast.Constant) for one in choices), f"{where}: {ast.unparse(sentence)}"


class Kept(LogRecordProcessor):
    def __init__(self) -> None:
        self.records: list[ReadWriteLogRecord] = []

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        self.records.append(log_record)

    def shutdown(self) -> None:
        return

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def test_no_words_of_an_engine_or_a_client_leave_with_a_log_record() -> None:
    kept = Kept()
    handler = OtlpHandler(Resource({}), kept, Tenants(["acme"]))
    log = logging.Logger("forkgate.judge.test")
    log.addHandler(handler)
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("%s broke", SECRET, extra={"error": SECRET, "pool": "old", "tenant": SECRET, "n": 3})
    log.info("%s", SECRET, extra={"rollout": "r", "reason": SECRET, "tenant": "acme"})
    other = logging.Logger("opentelemetry.exporter")
    other.addHandler(handler)
    other.error("would be sent by what it complains of")
    first, second = (one.log_record for one in kept.records)
    assert first.body == "%s broke"
    attributes = dict(first.attributes or {})
    assert attributes["forkgate.pool"] == "old"
    assert attributes["forkgate.n"] == 3
    assert attributes["forkgate.tenant"] == "other"
    assert attributes["exception.type"] == "ValueError"
    assert "test_telemetry_words.py" in str(attributes["exception.stacktrace"])
    assert dict(second.attributes or {})["forkgate.tenant"] == "acme"
    assert SECRET not in f"{kept.records}"
    handler.shut()


def everything(tenants: list[str] | None) -> InMemoryMetricReader:
    """Instruments that have met each event once."""
    verdict = Verdict(
        gate="g",
        answer=Answer.FAIL,
        value=1.0,
        limit=0.0,
        n=1,
        reason=SECRET,
        rollback_nats=1.0,
        promotion_nats=1.0,
    )
    rollout = RolloutObserved(
        name="r",
        stage="shadow",
        held=None,
        verdicts=lambda: [verdict],
        suites={"starter": (1, 2)},
        tenants_home=2,
    )
    reader = InMemoryMetricReader()
    seen = replace(
        observed(), pools_ready={"old": True}, pools_silent={"new": 1}, exports={("traces", "sent"): 1}
    )
    instruments = Instruments([reader], {}, tenants, lambda: seen, lambda: [rollout])
    instruments.live([live(tenant="acme", retried=True, aborted_by="client"), live(tenant="elsewhere")])
    instruments.overhead([0.000_02, float("nan")])
    digest = Fact(value="sha256:" + "e" * 64)
    instruments.comparison(
        comparison(pair(right={"digest": digest}), pair(right={"outcome": Outcome.FAILED}))
    )
    instruments.fork("r", "new", "candidate", None, "tie_flip")
    instruments.verdict("r", verdict)
    instruments.flip("r", 0.1, 0.1, 1)
    return reader


def names(reader: InMemoryMetricReader) -> dict[str, set[str]]:
    """Metric → keys of its attributes."""
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, set[str]] = {}
    for of_resource in data.resource_metrics:
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                keys = found.setdefault(metric.name, set())
                for point in metric.data.data_points:
                    keys |= set(point.attributes or {})
    return found


def test_the_documentation_lists_every_metric_with_its_attributes() -> None:
    text = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    rows = {
        line.split("`")[1]: line
        for line in text.splitlines()
        if line.startswith(("| `forkgate.", "| `gen_ai."))
    }
    found = names(everything(["acme"]))
    assert rows.keys() == found.keys()
    of_arms = {"rollout", "pool", "arm", "environment", "gen_ai.operation.name", "gen_ai.provider.name"}
    for name, keys in found.items():
        row = rows[name]
        for key in keys:
            short = key.removeprefix("forkgate.")
            assert short in row or ("the five below" in row and short in of_arms), f"{name}: {key}"


def test_a_tenant_is_told_only_where_the_configuration_allows_it() -> None:
    assert "forkgate.tenant" in names(everything(["acme"]))["forkgate.live.requests"]
    assert not any("forkgate.tenant" in keys for keys in names(everything(None)).values())


def test_every_live_metric_tells_the_environment_that_answered() -> None:
    """But one, which counts what another environment than the compared one answered, for each rollout."""
    live = {name: keys for name, keys in names(everything(None)).items() if name.startswith("forkgate.live.")}
    without = {name for name, keys in live.items() if not {"forkgate.environment", "forkgate.pool"} <= keys}
    assert without == {"forkgate.live.set_aside"}


def test_a_failed_arm_counts_under_its_outcome_and_gives_no_token_times() -> None:
    found = names(everything(None))
    assert "error.type" in found["gen_ai.client.operation.duration"]
    assert "error.type" not in found["gen_ai.server.time_to_first_token"]


@pytest.mark.parametrize("module", ["forkgate.config.telemetry", "proxy.edge.worker", "proxy.live"])
def test_neither_a_configuration_nor_an_edge_imports_opentelemetry(module: str) -> None:
    code = f"import sys, {module}; print('opentelemetry' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout.strip() == "False"

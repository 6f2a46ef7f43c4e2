"""Who answered, kept with what was answered, and first in every export."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from comparator.evidence import Batch, EvidenceReader, EvidenceStore, RecordSeen
from comparator.evidence import records as module
from comparator.evidence.export import read_comparisons
from engines.identity.artifact import ArtifactRecord
from engines.identity.artifact_json import from_json as artifact_of
from engines.identity.canonical import parse
from engines.identity.record import Identity
from engines.identity.record import from_json as environment_of
from tests.support.exchanges import done, pair

BYTES = 50_000_000
ENVIRONMENT = Identity(fields={"engine": "vllm", "driver": "575.57"}, about={"captured_at": "2026-11-30"})
ARTIFACT = ArtifactRecord(files=(), templates=(), image={"unknown": "no container"}, about={})


def seen(pool: str = "old", endpoint: str = "http://127.0.0.1:9001", unix_s: float = 5.0) -> RecordSeen:
    document = json.dumps(ENVIRONMENT.to_json(), indent=2).encode()
    return RecordSeen(
        kind="environment/1",
        digest=ENVIRONMENT.digest,
        document=document,
        pool=pool,
        endpoint=endpoint,
        unix_s=unix_s,
    )


def artifact(pool: str = "old") -> RecordSeen:
    return RecordSeen(
        kind="artifact/1",
        digest=ARTIFACT.digest,
        document=json.dumps(ARTIFACT.to_json()).encode(),
        pool=pool,
        endpoint="configuration",
        unix_s=6.0,
    )


def test_a_record_is_kept_once_with_every_place_and_time_that_it_was_seen(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store.add(Batch(records=(seen(), artifact())))
        store.add(Batch(records=(seen(unix_s=9.0), seen(unix_s=7.0), seen(pool="new", unix_s=8.0))))
        environment, other = store.records()
        assert (environment.kind, environment.digest, environment.first_seen_unix_s) == (
            "environment/1",
            ENVIRONMENT.digest,
            5.0,
        )
        assert [(one.pool, one.first_unix_s, one.last_unix_s) for one in environment.seen] == [
            ("old", 5.0, 9.0),
            ("new", 8.0, 8.0),
        ]
        assert other.kind == "artifact/1"
        assert environment_of(parse(environment.document)).digest == ENVIRONMENT.digest
        assert store.status().records == 2


def test_a_document_that_is_too_large_is_told_and_costs_its_neighbours_nothing(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 100)
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        small = msgspec.structs.replace(seen(), digest="sha256:small", document=b"{}")
        added = store.add(Batch(records=(seen(), small)))
        assert len(added.lost) == 1
        assert ENVIRONMENT.digest in added.lost[0]
        assert [one.digest for one in store.records()] == ["sha256:small"]


def test_an_export_begins_with_who_answered_and_reads_as_comparisons_all_the_same(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store.add(
            Batch(
                comparisons=(done(pair(capture_id="c-1")),),
                records=(
                    seen(),
                    artifact("new"),
                    msgspec.structs.replace(seen("elsewhere"), digest="sha256:x"),
                ),
            )
        )
        lines = list(store.export(rollout="old-to-new"))
    head, *rest = map(msgspec.json.decode, lines)
    assert (head["bundle"], head["rollout"], head["policy"], head["verdicts"]) == (
        "evidence/1",
        "old-to-new",
        None,
        [],
    )
    assert (
        head["arms"]["baseline"]
        == head["baseline"]
        == {"pools": ["old"], "environments": [], "artifacts": []}
    )
    assert head["candidate"] == {"pools": ["new"], "environments": [], "artifacts": [ARTIFACT.digest]}
    assert [line.get("record") for line in rest] == ["environment/1", "artifact/1", None]
    assert environment_of(parse(lines[1])).digest == ENVIRONMENT.digest  # its digest stands on one line too
    assert artifact_of(parse(lines[2])).digest == ARTIFACT.digest
    assert [one.capture_id for one in read_comparisons(lines)] == ["c-1"]


def test_records_of_a_rollout_are_those_of_the_pools_that_answered_in_it(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store.add(Batch(comparisons=(done(pair(capture_id="c-1")),), records=(seen("elsewhere"), artifact())))
    with EvidenceReader(tmp_path / "e") as reader:
        assert [one.kind for one in reader.records(rollout="old-to-new")] == ["artifact/1"]
        assert reader.records(rollout="another") == ()
        assert len(reader.records()) == 2

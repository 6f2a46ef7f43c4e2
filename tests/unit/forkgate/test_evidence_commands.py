"""``forkgate evidence`` against the admin API, with a store of more pairs than one answer holds."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import uvloop

from comparator.evidence import (
    Batch,
    ComparisonDone,
    EvidenceAmbiguous,
    EvidenceNotFound,
    EvidenceReader,
    EvidenceStore,
)
from forkgate.admin import AdminServer
from tests.support.exchanges import comparison, pair
from tests.unit.forkgate.test_admin import NotedJudge

PAIRS = 1_003


def commands(tmp_path: Path, *arguments: str) -> tuple[int, bytes]:
    """Exit status and standard output of the command line as users type it."""
    store = EvidenceStore(tmp_path / "evidence.db", 100_000_000)
    pairs = [pair((1, 2), (1, 2 + number % 2), capture_id=f"c-{number}") for number in range(PAIRS)]
    store.add(
        Batch(
            comparisons=tuple(
                ComparisonDone(comparison=comparison(one), incarnation="e", sequence=place + 1)
                for place, one in enumerate(pairs)
            )
        )
    )
    store.close()

    async def main() -> tuple[int, bytes]:
        server = AdminServer(tmp_path / "admin.sock", NotedJudge(tmp_path / "evidence.db"))
        await server.start()
        try:
            command = [sys.executable, "-m", "forkgate", *arguments, "--state-dir", str(tmp_path)]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            out, _ = await process.communicate()
            assert process.returncode is not None
            return process.returncode, out
        finally:
            await server.close()

    return uvloop.run(main())


def test_list_gives_as_many_as_were_asked_for(tmp_path: Path) -> None:
    """The admin API answers with a thousand at most; nobody typed that number."""
    code, out = commands(tmp_path, "evidence", "list", "--limit", "2000", "--json")
    assert code == 0
    listed = [one["capture_id"] for one in json.loads(out)]
    assert len(listed) == len(set(listed)) == PAIRS


def test_list_stops_at_its_limit_in_a_later_page(tmp_path: Path) -> None:
    code, out = commands(tmp_path, "evidence", "list", "--limit", "1001", "--json")
    assert code == 0
    assert len(json.loads(out)) == 1_001


def test_list_carries_its_filters_to_every_page(tmp_path: Path) -> None:
    code, out = commands(tmp_path, "evidence", "list", "--limit", "10000", "--forked", "--json")
    assert code == 0
    assert len(json.loads(out)) == PAIRS // 2


def test_export_takes_json_for_an_answer(tmp_path: Path) -> None:
    code, out = commands(tmp_path, "evidence", "export", "--json")
    assert code == 0
    head, *lines = [json.loads(line) for line in out.splitlines()]
    assert head["bundle"] == "evidence/1"
    assert len(lines) == PAIRS


def test_pair_is_shown_by_a_beginning_of_its_id_that_no_other_has(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path / "evidence.db", 100_000_000)
    ids = ("01a2293f-9a5e-7119", "01a2293f-9a5e-7120", "01a22940-0000-7000")
    store.add(
        Batch(
            comparisons=tuple(
                ComparisonDone(
                    comparison=comparison(pair((1, 2), (1, 3), capture_id=one)),
                    incarnation="e",
                    sequence=place + 1,
                )
                for place, one in enumerate(ids)
            )
        )
    )
    store.close()
    with EvidenceReader(tmp_path / "evidence.db") as reader:
        assert reader.resolve("01a22940") == ids[2]
        assert reader.resolve(ids[0]) == ids[0]
        with pytest.raises(EvidenceAmbiguous, match=r"7119, 01a2293f-9a5e-7120; give more of the ID"):
            reader.resolve("01a2293f")
        with pytest.raises(EvidenceNotFound, match="at least its first 8 characters"):
            reader.resolve("01a2294")
        for nobody in ("01a2295f-0", "01a22940%", "01a22940_"):
            with pytest.raises(EvidenceNotFound, match="no capture"):
                reader.resolve(nobody)


def test_show_names_the_replay_with_what_finds_this_sidecar_again(tmp_path: Path) -> None:
    code, out = commands(tmp_path, "evidence", "show", "c-1")
    assert code == 0
    lines = out.decode().splitlines()
    assert lines[-6:-4] == [f"run again: forkgate evidence replay c-1 --state-dir {tmp_path}", ""]
    assert lines[-4].startswith("artifact")


def test_unknown_id_is_a_usage_error(tmp_path: Path) -> None:
    code, out = commands(tmp_path, "evidence", "show", "c-999999")
    assert (code, out) == (2, b"")

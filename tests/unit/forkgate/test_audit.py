"""The audit log: a chain that shows what was done to it, and acts that wait for it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from comparator.evidence import Batch, ComparisonDone, EvidenceStore
from forkgate.admin import AdminServer, Verb
from forkgate.admin.audit import (
    GENESIS,
    MAX_WAITING,
    AuditEntry,
    AuditError,
    AuditFile,
    AuditLog,
    unsealed,
    verify,
)
from forkgate.cli.audit import line_of
from forkgate.config.admin import AdminSection
from tests.support.exchanges import comparison, pair
from tests.support.waiting import LIMIT_S, PATIENCE_S
from tests.unit.forkgate.test_admin import ME, NotedJudge


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(bounded())


def entry(why: str = "because", **changes: Any) -> AuditEntry:
    return AuditEntry(**{"unix_s": 1.0, "kind": "asked", "who": "ana", "action": "a", "why": why, **changes})


def written(path: Path, count: int = 5) -> list[bytes]:
    log = AuditFile(path)
    for number in range(count):
        log.append(entry(f"reason {number}"))
    log.close()
    return path.read_bytes().splitlines(keepends=True)


def entries(path: Path) -> list[AuditEntry]:
    return [unsealed(line)[0] for line in path.read_bytes().splitlines()]


# --- the chain


def test_chain_holds_over_restarts_and_its_file_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 2)
    written(path, 2)
    found = verify(path)
    assert (found.lines, found.problems) == (4, ())
    assert [one.seq for one in entries(path)] == [1, 2, 3, 4]
    assert entries(path)[0].prev == GENESIS
    assert path.stat().st_mode & 0o777 == 0o600


Lines = list[bytes]


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (
            lambda lines: [*lines[:1], lines[1].replace(b"reason 1", b"reason X"), *lines[2:]],
            "line 2: its content",
        ),
        (lambda lines: [*lines[:1], *lines[2:]], "line 2: does not follow the line before it, seq 3 after 1"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2: does not follow"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3: does not follow"),
        (lambda lines: lines[1:], "line 1: is no beginning, seq 2"),
        (lambda lines: [*lines[:2], b"{}\n", *lines[2:]], "line 3: does not end with a hash"),
    ],
)
def test_a_line_that_was_changed_taken_out_moved_or_added_is_found(
    tmp_path: Path, tamper: Callable[[Lines], Lines], says: str
) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"".join(tamper(written(path))))
    problems = verify(path).problems
    assert problems
    assert problems[0].startswith(says)


def test_tail_that_was_cut_off_is_found_with_a_head_kept_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = written(path)
    head = verify(path).head
    path.write_bytes(b"".join(lines[:-1]))
    assert verify(path).problems == ()
    assert verify(path, head).has_head is False
    path.write_bytes(b"".join(lines))
    written(path, 3)
    assert verify(path, head).has_head is True


def test_line_that_a_killed_judge_left_half_is_cut_off_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = written(path, 3)
    for cut in (1, 40, len(lines[2]) - 1):
        path.write_bytes(b"".join(lines[:2]) + lines[2][:cut])
        written(path, 1)
        assert verify(path).problems == ()
        assert [one.seq for one in entries(path)] == [1, 2, 3]


def test_damaged_last_line_is_not_built_upon(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = written(path, 2)
    path.write_bytes(lines[0] + lines[1].replace(b"reason 1", b"reason X"))
    with pytest.raises(AuditError, match="its last line was changed; move the file away"):
        AuditFile(path).append(entry())


def test_log_that_was_moved_away_goes_on_in_a_new_file_of_the_same_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditFile(path)
    log.append(entry("one"))
    path.rename(tmp_path / "old.jsonl")
    log.append(entry("two"))
    log.close()
    head = verify(tmp_path / "old.jsonl").head
    assert verify(path, follows=head).problems == ()
    assert "is no beginning" in verify(path).problems[0]


def test_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 1)
    before = path.read_bytes()
    log = AuditFile(path)
    real = os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        return real(fd, data[: len(data) // 2], offset)

    monkeypatch.setattr("forkgate.admin.audit.os.pwrite", half)
    with pytest.raises(OSError, match="the disk is full"):
        log.append(entry())
    assert path.read_bytes() == before
    monkeypatch.setattr("forkgate.admin.audit.os.pwrite", real)
    log.append(entry())
    log.close()
    assert verify(path).problems == ()


def test_lines_that_wait_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        log = AuditLog(tmp_path / "audit.jsonl", wait_s=0.05)
        release = threading.Event()

        def hang(one: AuditEntry) -> AuditEntry:
            release.wait(LIMIT_S)
            return one

        log._append = hang  # type: ignore[method-assign]
        told = await asyncio.gather(
            *(log.write(entry()) for _ in range(MAX_WAITING + 5)), return_exceptions=True
        )
        words = sorted({str(one).partition(": ")[2] for one in told})
        assert words == ["the disk did not answer within 0.05 s", "too many lines wait for the disk"]
        release.set()
        await log.close()

    run(main())


# --- acts, and a disk that refuses


class Disk:
    """Full while a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        real = os.pwrite

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, data, offset)

        monkeypatch.setattr("forkgate.admin.audit.os.pwrite", pwrite)


Ask = Callable[..., Coroutine[Any, Any, tuple[int, Any]]]


def served(tmp_path: Path, test: Callable[[Ask, NotedJudge, AdminServer], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        judge = NotedJudge(tmp_path / "evidence.db")
        server = AdminServer(tmp_path / "admin.sock", judge, AdminSection(audit_wait_s=PATIENCE_S))
        await server.start()
        connector = aiohttp.UnixConnector(str(tmp_path / "admin.sock"))
        async with aiohttp.ClientSession(connector=connector) as session:

            async def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
                async with session.request(method, f"http://judge{path}", json=body) as response:
                    return response.status, msgspec.json.decode(await response.read())

            try:
                await test(ask, judge, server)
            finally:
                await server.close()

    run(main())


BODY = {"reason": "driver rolled out"}


def test_an_act_stands_in_the_log_before_it_happens_and_its_result_after(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def test(ask: Ask, judge: NotedJudge, server: AdminServer) -> None:
        seen: list[list[str]] = []
        real = judge.act

        async def act(*words: Any, **more: Any) -> dict[str, Any]:
            seen.append([one.kind for one in entries(path)])
            return await real(*words, **more)

        judge.act = act  # type: ignore[method-assign]
        assert (await ask("POST", "/v1/rollouts/r/lift", BODY))[0] == 200
        assert seen == [["asked"]]
        asked, done = entries(path)
        assert (asked.who, asked.role, asked.via) == (ME, "owner", "unix")
        assert f"uid {os.getuid()}, pid {os.getpid()}" == asked.peer
        assert (asked.action, asked.target, asked.why) == (
            "rollout.lift",
            "/v1/rollouts/r/lift",
            "driver rolled out",
        )
        assert (done.kind, done.about, done.status, done.result, done.epoch) == ("done", 1, 200, "ok", 8)

    served(tmp_path, test)


def test_a_refusal_with_its_reasons_is_one_line_for_people() -> None:
    told = "rollout 'r': promote is not possible now:\n  - 0 of 2 requests were compared\n  - paused"
    line = line_of({"seq": 2, "kind": "done", "status": 409, "result": told})
    assert line.endswith(
        "→ 409 rollout 'r': promote is not possible now: 0 of 2 requests were compared; paused"
    )
    assert line_of({"seq": 3, "kind": "done", "status": 200, "result": "ok"}).endswith("→ 200 ok")


def test_an_act_that_is_refused_is_logged_with_its_refusal(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge, server: AdminServer) -> None:
        assert (await ask("POST", "/v1/rollouts/r/lift", {}))[0] == 400
        assert (await ask("POST", "/v1/evidence/c-1/replay"))[0] == 500  # a bug behind it
        done = [one for one in entries(tmp_path / "audit.jsonl") if one.kind == "done"]
        assert [(one.action, one.status) for one in done] == [("rollout.lift", 400), ("evidence.replay", 500)]
        assert "reason: missing" in done[0].result
        assert verify(tmp_path / "audit.jsonl").unfinished == 0

    served(tmp_path, test)


def test_reading_content_is_logged_and_reading_figures_is_not(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path / "evidence.db", 100_000_000)
    made = comparison(pair(capture_id="c-1"))
    store.add(Batch(comparisons=(ComparisonDone(comparison=made, incarnation="e", sequence=1),)))
    store.close()

    async def test(ask: Ask, judge: NotedJudge, server: AdminServer) -> None:
        for path in ("/v1/status", "/v1/rollouts", "/v1/evidence", "/healthz"):
            assert (await ask("GET", path))[0] == 200
        assert not (tmp_path / "audit.jsonl").exists()
        assert (await ask("GET", "/v1/evidence/c-1"))[0] == 200
        (read,) = entries(tmp_path / "audit.jsonl")
        assert (read.kind, read.action, read.target) == ("read", "evidence.show", "/v1/evidence/c-1")

    served(tmp_path, test)


def test_full_disk_refuses_acts_and_content_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def test(ask: Ask, judge: NotedJudge, server: AdminServer) -> None:
        for verb in Verb:
            if verb is Verb.ROLLBACK:
                continue
            status, told = await ask("POST", f"/v1/rollouts/r/{verb}", BODY)
            assert (status, told["error"]["code"]) == (503, "audit_unwritable")
            assert "No space left on device" in told["error"]["message"]
        assert judge.acted == []
        assert (await ask("GET", "/v1/evidence/c-1"))[1]["error"]["code"] == "audit_unwritable"
        assert (await ask("GET", "/v1/rollouts"))[0] == 200
        (trouble,) = (await ask("GET", "/v1/status"))[1]["troubles"]
        assert "the audit log cannot be written, and actions are refused" in trouble
        disk.full = False
        assert (await ask("POST", "/v1/rollouts/r/lift", BODY))[0] == 200
        assert (await ask("GET", "/v1/status"))[1]["troubles"] == []

    served(tmp_path, test)


def test_rollback_goes_through_a_full_disk_is_told_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    monkeypatch.setattr("forkgate.admin.guard.RETRY_LATE_S", 0.01)

    async def test(ask: Ask, judge: NotedJudge, server: AdminServer) -> None:
        status, told = await ask("POST", "/v1/rollouts/r/rollback", BODY)
        assert (status, told["audited"]) == (200, False)
        assert "No space left on device" in told["audit_trouble"]
        assert [verb for _, verb, *_ in judge.acted] == [Verb.ROLLBACK]
        assert server.guard.audit.late == 2
        disk.full = False
        while server.guard.audit.late:
            await asyncio.sleep(0.01)
        asked, done = entries(tmp_path / "audit.jsonl")
        assert (asked.kind, asked.late, asked.action) == ("asked", True, "rollout.rollback")
        assert (done.kind, done.late, done.about) == ("done", True, 0)
        assert verify(tmp_path / "audit.jsonl").problems == ()

    served(tmp_path, test)


def test_what_was_begun_is_finished_and_logged_when_its_client_goes_away(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge, server: AdminServer) -> None:
        begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        real = judge.act

        async def act(*words: Any, **more: Any) -> dict[str, Any]:
            begun.set()
            await go_on.wait()
            ended.set()
            return await real(*words, **more)

        judge.act = act  # type: ignore[method-assign]
        client = asyncio.create_task(ask("POST", "/v1/rollouts/r/lift", BODY))
        await begun.wait()
        client.cancel()
        with suppress(asyncio.CancelledError):
            await client
        go_on.set()
        await ended.wait()
        while len(entries(tmp_path / "audit.jsonl")) < 2:
            await asyncio.sleep(0.01)
        assert entries(tmp_path / "audit.jsonl")[1].result == "ok"

    served(tmp_path, test)

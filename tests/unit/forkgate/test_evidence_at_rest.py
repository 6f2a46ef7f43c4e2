"""Evidence at rest as an operator meets it: a real judge's parts, the admin API, and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from comparator.comparison import Comparison
from comparator.evidence import (
    NO_KEYS,
    EvidenceErased,
    EvidenceReader,
    Kept,
    Keyring,
    RecordSeen,
    Retention,
)
from comparator.evidence.keys import SealedKeyError
from forkgate.admin import AdminServer
from forkgate.judge import writer as writing
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.edited import edited
from forkgate.judge.keeping import EvidenceKeeping
from forkgate.judge.recompute import Recomputed, recompute
from forkgate.judge.writer import EvidenceWriter
from tests.support.at_rest import KEYS, fork_of, found_in, key, secret_pair
from tests.support.exchanges import comparison, done, live, pair
from tests.support.judging import Bench
from tests.support.waiting import LIMIT_S, eventually
from tests.unit.forkgate.test_admin import NotedJudge

NAME = "old-to-new"
Said = tuple[int, str, str]
Command = Callable[..., Coroutine[Any, Any, Said]]


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    uvloop.run(bounded())


def ids(number: int) -> str:
    return f"0190000{number}-0000-7000-8000-000000000000"


def secret(capture_id: str, tenant: str = "acme") -> Comparison:
    return comparison(secret_pair(capture_id, tenant))


async def life(bench: Bench) -> None:
    """Live records, equal pairs and one that forks, all of them full of words; a rollback comes of it."""
    for number in range(1, 5):
        await bench.judge.comparison_finished(comparison(pair(capture_id=f"equal-{number}")), "edge", number)
        bench.judge.live([live(sequence=number, canary=bool(number % 2))])
    bench.judge.fork_seen(fork_of(secret_pair(ids(1))))
    await eventually(lambda: bool(bench.judge.flips))
    await bench.judge.comparison_finished(secret(ids(1)), "edge", 50)
    await bench.checkpoints.save()


def again(path: Path, keys: Keyring = NO_KEYS) -> Recomputed:
    with EvidenceReader(path, keys) as reader:
        return recompute(reader, NAME)


def everything(state_dir: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(state_dir) for name in names]


def test_no_file_of_a_state_directory_shows_content_without_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Bench(tmp_path, keys=KEYS) as bench:
            await life(bench)
            assert found_in(everything(tmp_path)) == []  # beside a judge that writes, its log in full

    with caplog.at_level("DEBUG"):
        run(main())
    names = {path.name for path in everything(tmp_path)}
    assert {"evidence.db", "rollouts.json"} <= names
    assert found_in(everything(tmp_path)) == []
    (tmp_path / "log").write_text(caplog.text + "".join(str(record.__dict__) for record in caplog.records))
    assert found_in([tmp_path / "log"]) == []
    assert not any(b"old-to-new" in path.read_bytes() for path in [tmp_path / "rollouts.json"])


def test_sealed_verdicts_are_computed_again_bit_for_bit_with_the_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, keys=KEYS) as bench:
            await life(bench)

    run(main())
    told = again(tmp_path / "evidence.db", KEYS)
    assert told.verdicts
    assert (told.differing, told.unknown, told.problems, told.told) == (0, 0, (), ())


def test_the_command_takes_keys_from_files_and_names_what_is_wrong_with_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, keys=KEYS) as bench:
            await life(bench)

    run(main())
    right, wrong, broken = (tmp_path / name for name in ("right", "wrong", "broken"))
    right.write_text("01" * 32)
    wrong.write_text("09" * 32)
    broken.write_text("a passphrase")

    def recomputed(*keys: Path) -> subprocess.CompletedProcess[str]:
        words = ["verdict", "recompute", "--evidence", str(tmp_path / "evidence.db"), "--rollout", NAME]
        words += [word for path in keys for word in ("--key-file", str(path))]
        command = [sys.executable, "-m", "forkgate", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)

    done = recomputed(wrong, right)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("equal")
    done = recomputed(wrong)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"sealed with key {key(1).id}, and that key is not given (given: {key(9).id})" in done.stderr
    done = recomputed(broken)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no key: 12 characters" in done.stderr
    assert "passphrase is none" in done.stderr


def test_the_next_judge_takes_over_a_sealed_checkpoint_and_an_older_plain_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await life(bench)
            evidence = bench.desk.state(NAME).evidence
        for keys in (KEYS, KEYS, Keyring(current=key(2), old=(key(1),))):
            async with Bench(tmp_path, keys=keys) as bench:
                assert bench.desk.state(NAME).evidence == evidence
                bench.checkpoints._saved.clear()
                await bench.checkpoints.save()
            assert (tmp_path / "rollouts.json").read_bytes().startswith(b"forkgate sealed file")

    run(main())


def test_a_checkpoint_whose_key_is_not_given_is_neither_lost_nor_written_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, keys=KEYS) as bench:
            await life(bench)
            await bench.checkpoints.save()
            before = bench.paths.rollouts.read_bytes()
            bench.writer.keys = Keyring(current=key(2))
            another = Checkpoints(bench.paths.rollouts, bench.desk, bench.writer)
            with pytest.raises(SealedKeyError, match=f"sealed with key {key(1).id}, which is not among"):
                await another.restore()
            assert bench.paths.rollouts.read_bytes() == before
            # What an edited file would change is told from the same file, by the edited file's keys.
            (told,) = edited(bench.config, bench.paths, lambda: KEYS)
            assert (told["new"], told["place"], told["changes"]) == (False, "rolled_back", [])
            with pytest.raises(SealedKeyError):
                edited(bench.config, bench.paths, Keyring)
            bench.writer.keys = KEYS

    run(main())


def test_hashes_alone_give_the_same_verdicts_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, keys=KEYS, kept=Kept.HASHES) as bench:
            await life(bench)
        assert found_in(everything(tmp_path)) == []

    run(main())
    told = again(tmp_path / "evidence.db", KEYS)
    assert any(one.answer == "fail" for one in told.verdicts)
    assert (told.differing, told.unknown, told.problems, told.told) == (0, 0, (), ())


def test_after_an_erasure_verdicts_say_what_is_gone_and_never_count_as_equal(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, keys=KEYS) as bench:
            await life(bench)
            told = await EvidenceKeeping(bench.writer).erase("capture", ids(1), "anna", "ticket 7")
            assert (told["done"], told["captures"], told["exchanges"]) == (True, 1, 2)

    run(main())
    told = again(tmp_path / "evidence.db", KEYS)
    failed = [one for one in told.verdicts if one.answer == "fail"]
    assert failed
    assert [one.equal for one in failed] == [None] * len(failed)
    assert told.differing == 0
    assert any("was erased on" in one and "ticket 7" in one for one in told.told)


# -- the commands -----------------------------------------------------------------------------------------


def served(
    tmp_path: Path,
    test: Callable[[Command, EvidenceWriter], Coroutine[Any, Any, None]],
    *,
    keys: Keyring = KEYS,
    **more: Any,
) -> None:
    """A real writer behind a real admin API."""

    async def main() -> None:
        writer = EvidenceWriter(tmp_path / "evidence.db", 100_000_000, keys=keys, **more)
        writer.start()
        judge = NotedJudge(tmp_path / "evidence.db")
        judge.evidence_keys, judge.keeping = keys, EvidenceKeeping(writer)
        server = AdminServer(tmp_path / "admin.sock", judge)
        await server.start()

        async def command(*words: str) -> Said:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "forkgate",
                "evidence",
                *words,
                "--state-dir",
                str(tmp_path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate()
            assert process.returncode is not None
            return process.returncode, out.decode(), err.decode()

        try:
            await test(command, writer)
        finally:
            await server.close()
            await writer.close(10)

    run(main())


async def kept(writer: EvidenceWriter, *captures: tuple[str, str]) -> None:
    for place, (capture_id, tenant) in enumerate(captures, 1):
        await writer.keep(done(secret_pair(capture_id, tenant), sequence=place))


def test_a_request_and_a_tenant_are_erased_and_the_log_says_so(tmp_path: Path) -> None:
    async def test(command: Command, writer: EvidenceWriter) -> None:
        await kept(writer, *((ids(number), "acme" if number < 4 else "globex") for number in range(1, 7)))
        code, out, _ = await command("erase", "--id", ids(1)[:8], "--reason", "ticket 7", "--yes")
        assert code == 0
        assert f"capture {ids(1)}  1 captures, 2 answers  by " in out
        assert out.rstrip().endswith(": ticket 7")
        code, out, _ = await command("erase", "--tenant", "acme", "--reason", "left us", "--json", "--yes")
        told = json.loads(out)
        assert (code, told["captures"], told["done"], told["again"]) == (0, 2, True, False)
        code, out, _ = await command("erase", "--id", ids(2), "--reason", "once more", "--yes")
        assert (code, out.startswith("erased before, nothing was left: ")) == (0, True)
        code, out, err = await command("erasures")
        assert (code, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()] == ["1", "2"]
        assert told["hash"] in out
        code, out, err = await command("show", ids(1))
        assert (code, out) == (2, "")
        assert "was erased on" in err
        code, out, _ = await command("export")
        lines = [json.loads(line) for line in out.splitlines()]
        assert [one["name"] for one in lines if "erasure" in one] == [ids(1), "acme"]
        assert {one["capture_id"] for one in lines if "capture_id" in one} == {ids(n) for n in (4, 5, 6)}

    served(tmp_path, test)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--reason", "why"), "exactly one of --tenant and --id"),
        (("--reason", "why", "--tenant", "a", "--id", "b"), "exactly one of --tenant and --id"),
        (("--reason", "why", "--tenant", "nobody"), "nothing of tenant nobody is stored"),
        (("--reason", "why", "--id", ids(9)), "no capture 01900009"),
        (("--reason", " ", "--tenant", "acme"), "reason"),
    ],
)
def test_an_erasure_of_nothing_is_refused_in_words(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    async def test(command: Command, writer: EvidenceWriter) -> None:
        await kept(writer, (ids(1), "acme"))
        code, out, err = await command("erase", *words, "--yes")
        assert (code, out) == (2, "")
        assert said in err
        assert (await writer.status()).pairs == 1

    served(tmp_path, test)


def test_an_erasure_that_nobody_can_be_asked_about_wants_yes(tmp_path: Path) -> None:
    async def test(command: Command, writer: EvidenceWriter) -> None:
        await kept(writer, (ids(1), "acme"))
        code, out, err = await command("erase", "--tenant", "acme", "--reason", "ticket 7")
        assert (code, out) == (2, "")
        assert "--yes" in err
        assert (await writer.status()).pairs == 1

    served(tmp_path, test)


def test_a_rekey_names_the_key_that_may_go(tmp_path: Path) -> None:
    async def fill(_command: Command, writer: EvidenceWriter) -> None:
        await kept(writer, *((ids(number), "acme") for number in range(1, 7)))

    async def rotate(command: Command, _writer: EvidenceWriter) -> None:
        code, out, _ = await command("rekey")
        assert code == 0
        assert f"everything stored is sealed with key {key(2).id}" in out
        assert f"key {key(1).id} is not needed any more" in out

    async def locked(command: Command, _writer: EvidenceWriter) -> None:
        code, out, err = await command("show", ids(1))
        assert (code, out) == (4, "")
        assert f"sealed with key {key(2).id}, and that key is not given" in err

    served(tmp_path, fill)
    served(tmp_path, rotate, keys=Keyring(current=key(2), old=(key(1),)))
    served(tmp_path, locked, keys=KEYS)


def test_records_are_listed_by_digest_and_place(tmp_path: Path) -> None:
    async def test(command: Command, writer: EvidenceWriter) -> None:
        writer.note(
            RecordSeen(
                kind="environment/1",
                digest="sha256:aa",
                document=b'{"record":"environment/1"}',
                pool="old",
                endpoint="http://127.0.0.1:9001",
                unix_s=1.0,
            )
        )
        await writer.status()
        code, out, _ = await command("records")
        assert (code, out) == (0, "environment/1  sha256:aa  old http://127.0.0.1:9001\n")
        code, out, _ = await command("records", "--json")
        assert json.loads(out)[0]["document"] == {"record": "environment/1"}

    served(tmp_path, test)


def test_the_writer_takes_what_is_too_old_by_itself(tmp_path: Path) -> None:
    async def test(_command: Command, writer: EvidenceWriter) -> None:
        await kept(writer, *((ids(number), "acme") for number in range(1, 7)))
        assert found_in(everything(tmp_path))
        writer._next_upkeep = 0.0
        await writer.status()
        await eventually(lambda: not found_in(everything(tmp_path)))
        assert (await writer.status()).forgotten_captures == 6

    served(tmp_path, test, keys=NO_KEYS, retention=(Retention(max_age_s=1.0),))


def test_an_erasure_that_a_judge_was_killed_in_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(_command: Command, writer: EvidenceWriter) -> None:
        await kept(writer, *((ids(number), "acme") for number in range(1, 7)))
        await writer.call(lambda store: store.erase("tenant", "acme", "anna", "ticket 7", 5.0))

    async def look(command: Command, writer: EvidenceWriter) -> None:
        await writer.status()
        with EvidenceReader(tmp_path / "evidence.db", KEYS) as reader:
            await eventually(lambda: len(reader.erasures()) == 1)
            with pytest.raises(EvidenceErased):
                reader.show(ids(3))

    monkeypatch.setattr(writing, "UPKEEP_S", 3_600.0)
    served(tmp_path, begin)
    served(tmp_path, look)

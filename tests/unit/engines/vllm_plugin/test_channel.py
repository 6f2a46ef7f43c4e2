"""The ring between an engine core and the API servers: in order, bounded, never waited for."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from engines.vllm_plugin import channel
from engines.vllm_plugin.channel import LANES, RECORDS, NoChannel, Reader, Writer, create

KEY = bytes(range(16))
OTHER = bytes(16)
ROOT = pathlib.Path(__file__).parents[4]


@pytest.fixture
def path() -> str:
    return create()


def heard(reader: Reader) -> list[tuple[bytes, int, int, int, int]]:
    found: list[tuple[bytes, int, int, int, int]] = []
    assert reader.drain(lambda *record: found.append(record)) == 0
    return found


def test_records_arrive_once_and_in_order(path: str) -> None:
    reader, writer = Reader(path), Writer(path)
    writer.write(KEY, 0, 3, 2)
    writer.write(OTHER, 7, 4_000_000_000, 1, 1)
    assert heard(reader) == [(KEY, 0, 3, 2, 0), (OTHER, 7, 4_000_000_000, 1, 1)]
    assert heard(reader) == []


def test_every_reader_hears_every_engine(path: str) -> None:
    readers = [Reader(path), Reader(path)]
    other = engine_elsewhere(path)  # locks are a process's, so the second engine is a second process
    writer = Writer(path)
    writer.write(KEY, 0, 1, 0)
    for reader in readers:
        assert sorted(heard(reader)) == sorted([(KEY, 0, 1, 0, 0), (OTHER, 9, 9, 9, 0)])
    end(other)


def test_a_reader_hears_what_is_told_after_it_came(path: str) -> None:
    writer = Writer(path)
    writer.write(KEY, 0, 1, 0)
    reader = Reader(path)
    writer.write(OTHER, 0, 2, 1)
    assert heard(reader) == [(OTHER, 0, 2, 1, 0)]


def test_a_reader_that_slept_for_a_round_knows_how_much_it_lost(path: str) -> None:
    reader, writer = Reader(path), Writer(path)
    for position in range(RECORDS + 5):
        writer.write(KEY, position, 1, 0)
    found: list[int] = []
    assert reader.drain(lambda _key, position, *_: found.append(position)) == 6
    assert found == list(range(6, RECORDS + 5))
    assert reader.drain(lambda *_: pytest.fail("told twice")) == 0


def test_what_the_writer_overtakes_during_a_read_is_lost_and_not_believed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = Reader(path), Writer(path)
    for position in range(RECORDS - 1):
        writer.write(KEY, position, 1, 0)
    honest = Reader._records

    def slow(self: Reader, lane: int, first: int, stop: int) -> list[tuple[bytes, int, int, int, int]]:
        for position in range(RECORDS - 1, RECORDS + 2):  # the writer goes on, to the third oldest
            writer.write(OTHER, position, 1, 0)
        return list(honest(self, lane, first, stop))

    monkeypatch.setattr(Reader, "_records", slow)
    found: list[tuple[bytes, int]] = []
    assert reader.drain(lambda key, position, *_: found.append((key, position))) == 3
    assert found == [(KEY, position) for position in range(3, RECORDS - 1)]


def test_a_record_that_is_being_written_over_is_not_believed(path: str) -> None:
    reader, writer = Reader(path), Writer(path)
    for position in range(RECORDS):
        writer.write(KEY, position, 1, 0)
    # As the writer is between its two stores: the next record lies over the oldest, and no head says so.
    channel._RECORD.pack_into(writer._map, writer._start, OTHER, RECORDS, 9, 9, 0)
    found: list[tuple[bytes, int]] = []
    assert reader.drain(lambda key, position, *_: found.append((key, position))) == 1
    assert found == [(KEY, position) for position in range(1, RECORDS)]


def test_a_reader_beside_a_busy_writer_misses_nothing_and_invents_nothing(path: str) -> None:
    reader, writer = Reader(path), Writer(path)
    total = 3 * RECORDS
    found: list[int] = []
    lost = 0

    def write() -> None:
        for position in range(total):
            writer.write(KEY, position, position + 1, position + 2)

    thread = threading.Thread(target=write)
    thread.start()
    deadline_s = time.monotonic() + 60
    while len(found) + lost < total and time.monotonic() < deadline_s:

        def note(key: bytes, position: int, size: int, place: int, _flags: int) -> None:
            assert (key, size, place) == (KEY, position + 1, position + 2)
            found.append(position)

        lost += reader.drain(note)
    thread.join()
    assert len(found) + lost == total
    assert found == sorted(set(found))


def test_memory_does_not_grow_and_idle_lanes_take_none(path: str) -> None:
    writer = Writer(path)
    for position in range(3 * RECORDS):
        writer.write(KEY, position, 1, 0)
    assert os.stat(path).st_blocks * 512 < 2 * RECORDS * 32


def test_a_lane_is_given_back_when_its_engine_dies(path: str) -> None:
    reader = Reader(path)
    for _ in range(3):
        end(engine_elsewhere(path))
    heard(reader)
    writer = Writer(path)
    writer.write(KEY, 1, 1, 1)
    assert heard(reader) == [(KEY, 1, 1, 1, 0)]
    assert reader._seen[0] == 4  # all four engines had the first lane, and went on where it stood


def test_an_engine_too_many_is_told_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(channel.fcntl, "lockf", taken)
    with pytest.raises(NoChannel, match=f"all {LANES} lanes"):
        Writer(path)


@pytest.mark.parametrize("where", [None, "", "/proc/self/fd/9999", "/nowhere", "/dev/null", "/etc"])
@pytest.mark.parametrize("kind", [Writer, Reader])
def test_what_is_no_channel_is_refused_with_words(kind: type, where: str | None) -> None:
    with pytest.raises(NoChannel) as caught:
        kind(where)
    assert str(caught.value)


def test_the_memory_ends_with_its_processes(path: str) -> None:
    made = "from engines.vllm_plugin.channel import create; print(create())"
    done = subprocess.run([sys.executable, "-c", made], cwd=ROOT, capture_output=True, text=True, check=True)
    gone = done.stdout.strip()
    assert gone.startswith("/proc/")
    with pytest.raises(NoChannel, match="has ended"):
        Reader(gone)


def engine_elsewhere(path: str) -> subprocess.Popen[str]:
    """Another process that has written one record and holds its lane."""
    told = (
        "import sys; from engines.vllm_plugin.channel import Writer; writer = Writer(sys.argv[1]); "
        "writer.write(bytes(16), 9, 9, 9); print('told', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", told, path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "told\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()

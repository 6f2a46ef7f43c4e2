"""Artifacts: what holds for every folder, every change, every damage."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engines.identity.artifact import record_artifact
from engines.identity.artifact_headers import BadHeader, header_facts
from engines.identity.artifact_json import from_json
from engines.identity.artifact_kinds import Role
from engines.identity.artifact_verify import verify_artifact
from engines.identity.canonical import canonical, parse
from engines.identity.hash_cache import FileKey, HashCache
from engines.identity.hashing import Hashed, hash_files
from engines.identity.locate import locate_artifact
from tests.support.artifacts import gguf, safetensors

# A busy disk's time says nothing of the code.
on_disk = settings(deadline=None)
# Names of any bytes that a Linux file may have; an ending makes it a kind without a header.
_NAMES = (
    st.binary(min_size=1, max_size=12)
    .filter(lambda raw: not set(raw) & {0, ord("/")})
    .map(lambda raw: os.fsdecode(raw) + ".dat")
)
_FOLDERS = st.dictionaries(_NAMES, st.binary(max_size=64), min_size=1, max_size=6)


@contextmanager
def folder_of(files: dict[str, bytes]) -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as made:
        root = pathlib.Path(made) / "m"
        root.mkdir()
        (root / "tokenizer.model").write_bytes(b"one file that is known")
        for name, content in files.items():
            (root / name).write_bytes(content)
        yield root


@on_disk
@given(_FOLDERS, st.integers(1, 4))
def test_every_file_has_hashlibs_sum_whatever_its_name_and_the_threads(
    files: dict[str, bytes], threads: int
) -> None:
    with folder_of(files) as root:
        outcomes = hash_files((str(root / name) for name in files), threads=threads)
        for name, content in files.items():
            outcome = outcomes[str(root / name)]
            assert isinstance(outcome, Hashed)
            assert outcome.sha256 == hashlib.sha256(content).hexdigest()


@on_disk
@given(_FOLDERS)
def test_a_record_reads_back_and_its_folder_verifies(files: dict[str, bytes]) -> None:
    with folder_of(files) as root:
        record = record_artifact(root)
        again = from_json(parse(canonical(record.to_json())))
        assert again == record
        assert verify_artifact(again, root).files_equal
        assert {file.path for file in again.files} == {*files, "tokenizer.model"}


@on_disk
@given(_FOLDERS, st.randoms(use_true_random=False))
def test_one_flipped_bit_is_found_and_named(files: dict[str, bytes], chance: random.Random) -> None:
    filled = sorted(name for name, content in files.items() if content)
    assume(filled)
    with folder_of(files) as root:
        record = record_artifact(root)
        name = chance.choice(filled)
        content = bytearray(files[name])
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (root / name).write_bytes(content)
        seen = verify_artifact(record, root)
        assert [one.file.path for one in seen.changed] == [name]
        assert record_artifact(root).digest != record.digest


@on_disk
@given(_FOLDERS, st.randoms(use_true_random=False))
def test_files_are_found_wherever_they_went(files: dict[str, bytes], chance: random.Random) -> None:
    with folder_of(files) as root:
        record = record_artifact(root)
        names = [file.path for file in record.files]
        for number, name in enumerate(names):
            place = root / ("x/" * chance.randrange(4) + f"renamed-{number}")
            place.parent.mkdir(parents=True, exist_ok=True)
            (root / name).rename(place)
        search = locate_artifact(record, [root])
        assert not search.gone
        for one in search.located:
            for place in one.places:
                content = pathlib.Path(place).read_bytes()
                assert hashlib.sha256(content).hexdigest() == one.file.sha256


_WHOLE = {"m.safetensors": safetensors({"a": 3, "b": 4}), "m.gguf": gguf(general__type="model")}


@on_disk
@given(
    st.sampled_from(sorted(_WHOLE)), st.integers(0, 2000), st.binary(min_size=1, max_size=9), st.booleans()
)
def test_a_damaged_header_is_refused_or_read_and_never_a_crash(
    name: str, at: int, damage: bytes, cut: bool
) -> None:
    whole = _WHOLE[name]
    at %= len(whole)
    content = whole[:at] if cut else whole[:at] + damage + whole[at + len(damage) :]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_bytes(content)
        try:
            facts = header_facts(str(path), name, Role.WEIGHT)
        except BadHeader:
            return
        assert not cut
        assert facts is not None


@on_disk
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12), st.data())
def test_a_damaged_cache_never_tells_a_sum_that_was_not_put(
    puts: list[tuple[int, int]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "sums"
        put: dict[FileKey, str] = {}
        for inode, stamp in puts:
            key = FileKey(1, inode, 10, stamp, stamp)
            put[key] = hashlib.sha256(f"{inode} {stamp}".encode()).hexdigest()
            HashCache(path).put([(key, put[key])], now_ns=10**18)
        content = bytearray(path.read_bytes() if path.exists() else b"")
        for _ in range(data.draw(st.integers(0, 5))):
            if content:
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        cache = HashCache(path)
        for key, digest in put.items():
            assert cache.get(key) in (None, digest)

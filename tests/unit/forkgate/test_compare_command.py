"""``forkgate compare``: what a person and a script see. The product's own commands capture the records."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from comparator.comparison import Comparison
from comparator.evidence import (
    NO_KEYS,
    Batch,
    ComparisonDone,
    EvidenceReader,
    EvidenceStore,
    Kept,
    Keyring,
    RecordSeen,
    key_of,
)
from comparator.records import Arm, Fact
from engines.identity import canonical
from engines.identity import record as environment_record
from engines.identity.record import Identity
from forkgate.cli.app import app
from forkgate.levels import sources
from tests.support.artifacts import model_folder
from tests.support.exchanges import comparison, pair
from tests.support.ports import free_port

IMAGE = "sha256:" + "a" * 64
SAID: dict[str, Any] = {
    "engine.name": "forkgate-reference",
    "engine.device": "cpu",
    "precision.dtype": "float32",
    "precision.quantization": "none",
    "precision.kv_cache_dtype": "float32",
    "precision.matmul": "native",
    "engine.model_overrides": {},
    "determinism.batch_invariant": True,
}
"""What the engines of these tests say of themselves, over what is captured of this machine."""


def run(*arguments: Any, status: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def compare(*arguments: Any, status: int = 0) -> Result:
    return run("compare", *arguments, status=status)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    out = tmp_path_factory.mktemp("captured") / "environment.json"
    run("environment", "capture", "--image-digest", IMAGE, "-o", out)
    return environment_record.load(out)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FORKGATE_IMAGE_DIGEST", raising=False)
    monkeypatch.chdir(tmp_path)


class Folders:
    """Sides on disk: a folder each, with an environment and an artifact record."""

    def __init__(self, root: pathlib.Path, captured: Identity) -> None:
        self.root = root
        self.captured = captured
        self.model = model_folder(root / "model")

    def side(self, name: str, **said: Any) -> pathlib.Path:
        folder = self.root / name
        folder.mkdir()
        run("artifact", "record", self.model, "--image-digest", IMAGE, "-o", folder / "artifact.json")
        digest = json.loads((folder / "artifact.json").read_text())["digest"]
        told = {key.replace("__", "."): value for key, value in said.items()}
        made = Identity(fields={**self.captured.fields, **SAID, "artifact.digest": digest, **told})
        (folder / "environment.json").write_text(json.dumps(made.to_json(), indent=2))
        return folder

    def digest(self, folder: pathlib.Path) -> str:
        return environment_record.load(folder / "environment.json").digest


@pytest.fixture
def folders(tmp_path: pathlib.Path, captured: Identity) -> Folders:
    return Folders(tmp_path, captured)


def answered(
    name: str, left: str | None, right: str | None, *, fork: bool = False, arm: Arm = Arm.CANDIDATE
) -> Comparison:
    def signed(digest: str | None) -> dict[str, Any]:
        return {"digest": Fact(unknown="it tells none") if digest is None else Fact(value=digest)}

    right_ids = (1, 2, 9) if fork else (1, 2, 3)
    made = pair((1, 2, 3), right_ids, capture_id=name, left=signed(left), right=signed(right), right_arm=arm)
    return comparison(made)


def store(
    path: pathlib.Path,
    *kept: Comparison,
    sides: dict[str, pathlib.Path] | None = None,
    keys: Keyring = NO_KEYS,
    kept_as: Kept = Kept.FULL,
) -> pathlib.Path:
    """A rollout's store; ``sides`` are pools whose engines served their records."""
    seen = []
    for pool, folder in (sides or {}).items():
        for file in sorted(folder.iterdir()):
            document = json.loads(file.read_text())
            seen.append(
                RecordSeen(
                    kind=document["record"],
                    digest=document["digest"],
                    document=file.read_bytes(),
                    pool=pool,
                    endpoint="http://127.0.0.1:9001",
                    unix_s=1.0,
                )
            )
    done = (
        ComparisonDone(comparison=one, incarnation="e", sequence=place) for place, one in enumerate(kept, 1)
    )
    with EvidenceStore(path, 50_000_000, keys=keys, kept=kept_as) as opened:
        opened.add(Batch(comparisons=tuple(done), records=tuple(seen)))
    return path


def exported(file: pathlib.Path, to: pathlib.Path, keys: Keyring = NO_KEYS) -> pathlib.Path:
    with EvidenceReader(file, keys) as reader:
        to.write_bytes(b"".join(reader.export(rollout="old-to-new")))
    return to


def test_two_equal_folders_share_an_artifact_and_what_nobody_knows_is_not_equal(folders: Folders) -> None:
    a, b = folders.side("a"), folders.side("b")
    told = json.loads(compare(a, b, "--json").stdout)
    can = {level: (one["can"], one["shown"]) for level, one in told["levels"].items()}
    assert can == {
        "artifact": ("yes", True),
        "environment": ("unknown", False),
        "token": ("yes", False),
        "statistical": ("yes", False),
    }
    assert told["a"]["environment"] == folders.digest(a)
    unknown = [one["what"] for one in told["in_the_way"] if one["weight"] == "unknown"]
    assert "attention.backend" in unknown
    assert "cudnn.version" not in unknown  # a GPU's library, and both engines run on the CPU


@pytest.mark.parametrize(
    ("level", "status"), [("artifact", 0), ("environment", 3), ("token", 3), ("statistical", 3)]
)
def test_the_level_asked_for_decides_the_exit_status(folders: Folders, level: str, status: int) -> None:
    compare(folders.side("a"), folders.side("b"), "--level", level, status=status)


@pytest.mark.parametrize(
    ("level", "status"), [("artifact", 0), ("environment", 1), ("token", 1), ("statistical", 3)]
)
def test_another_precision_can_only_be_the_same_statistically(
    folders: Folders, level: str, status: int
) -> None:
    a, b = folders.side("a"), folders.side("b", precision__dtype="bfloat16")
    told = compare(a, b, "--level", level, status=status).stdout
    assert told.startswith("a and b: ")
    if status == 1:
        assert "precision.dtype: float32 | bfloat16" in told


def test_who_knows_may_vouch_and_is_told_so(folders: Folders) -> None:
    a, b = folders.side("a"), folders.side("b")
    told = compare(a, b, "--vouch", "*", "--level", "environment").stdout
    assert told.startswith("a and b: environment level shown")
    assert "counted as equal because you vouch for it: " in told


def test_record_files_may_be_named_one_by_one(folders: Folders) -> None:
    a, b = folders.side("a"), folders.side("b")
    told = compare(f"{a}/environment.json,{a}/artifact.json", b / "artifact.json", "--json").stdout
    sides = json.loads(told)
    assert (sides["a"]["environment"], sides["b"]["environment"]) == (folders.digest(a), None)
    compare(a / "artifact.json", b / "artifact.json", "--level", "artifact")


class TestEvidence:
    def test_equal_answers_show_the_token_level_from_a_store(self, folders: Folders) -> None:
        a, b = folders.side("a"), folders.side("b", gpu__driver="2")
        signed = folders.digest(a), folders.digest(b)
        kept = [answered(f"c{n}", *signed) for n in range(40)]
        kept += [answered(f"k{n}", signed[0], signed[0], arm=Arm.CONTROL) for n in range(3)]
        db = store(folders.root / "evidence.db", *kept)
        told = compare(a, b, "--evidence", db, "--level", "token", "--forks-at-most", "0.1").stdout
        assert told.startswith(
            "a and b: token level shown: 40 prompts answered equally, none forked: at most 7.2 % like them "
            "fork; nor did 3 controls fork"
        )
        compare(a, b, "--evidence", db, "--level", "token", status=3)

    def test_one_fork_refutes_it(self, folders: Folders) -> None:
        a, b = folders.side("a"), folders.side("b", gpu__driver="2")
        signed = folders.digest(a), folders.digest(b)
        db = store(folders.root / "e.db", *(answered(f"c{n}", *signed, fork=n == 7) for n in range(40)))
        told = compare(a, b, "--evidence", db, "--level", "token", status=1).stdout
        assert "1 of 40 prompts forked; the first at output token 2 of capture c7" in told

    def test_a_bundle_brings_both_sides_along(self, folders: Folders) -> None:
        a, b = folders.side("a"), folders.side("b", os__libc="2")
        signed = folders.digest(a), folders.digest(b)
        kept = [answered(f"c{n}", *signed) for n in range(40)]
        db = store(folders.root / "e.db", *kept, sides={"old": a, "new": b})
        bundle = exported(db, folders.root / "bundle.ndjson")
        for evidence in (db, bundle):
            told = json.loads(compare("--evidence", evidence, "--json").stdout)
            assert (told["a"]["environment"], told["b"]["environment"]) == signed
            assert (told["a"]["name"], told["b"]["name"]) == ("old", "new")
            assert told["levels"]["artifact"]["shown"] is True
            assert told["evidence"]["between"] == {"equal": 40, "forked": 0}
            assert "os.libc" in [one["what"] for one in told["in_the_way"]]

    def test_unsigned_answers_count_only_where_somebody_vouches(self, folders: Folders) -> None:
        a, b = folders.side("a"), folders.side("b")
        db = store(folders.root / "e.db", *(answered(f"c{n}", None, None) for n in range(40)))
        asked = (a, b, "--evidence", db, "--level", "token", "--forks-at-most", "0.1")
        told = compare(*asked, status=3).stdout
        assert "40 pairs hold an answer that its engine did not sign" in told
        told = compare(*asked, "--vouch", "answers").stdout
        assert "because you vouch for it: answers" in told

    def test_a_policy_judges_the_evidence_at_hand(self, folders: Folders) -> None:
        a, b = folders.side("a"), folders.side("b", os__libc="2")
        signed = folders.digest(a), folders.digest(b)
        db = store(folders.root / "e.db", *(answered(f"c{n}", *signed) for n in range(40)))
        policy = folders.root / "policy.yaml"
        policy.write_text("level: token\nalpha: 0.05\ngates: {token_equality: {minimum_pairs: 40}}\n")
        asked = (a, b, "--evidence", db, "--level", "statistical")
        assert "give --policy NAME" in compare(*asked, status=3).stdout
        assert "every gate passes (token_equality)" in compare(*asked, "--policy", policy).stdout

    def test_a_store_of_several_rollouts_counts_whole_and_needs_a_name_to_bring_its_sides(
        self, folders: Folders
    ) -> None:
        a, b = folders.side("a"), folders.side("b", os__libc="2")
        signed = folders.digest(a), folders.digest(b)
        kept = [answered(f"c{n}", *signed) for n in range(40)]
        kept = [
            msgspec.structs.replace(one, rollout=f"r{place % 2}", capture_id=one.capture_id)
            for place, one in enumerate(kept)
        ]
        db = store(folders.root / "e.db", *kept, sides={"old": a, "new": b})
        assert (
            json.loads(compare(a, b, "--evidence", db, "--json").stdout)["evidence"]["between"]["equal"] == 40
        )
        one = compare(a, b, "--evidence", db, "--rollout", "r1", "--json")
        assert json.loads(one.stdout)["evidence"]["between"]["equal"] == 20
        assert "knows r0, r1: whose baseline" in compare("--evidence", db, status=2).stderr

    def test_hashes_show_equal_tokens_and_answer_no_gate_that_reads_them(self, folders: Folders) -> None:
        a, b = folders.side("a"), folders.side("b", os__libc="2")
        signed = folders.digest(a), folders.digest(b)
        keys = Keyring(current=key_of("7" * 64))
        kept = [answered(f"c{n}", *signed, fork=n == 3) for n in range(40)]
        db = store(folders.root / "e.db", *kept, keys=keys, kept_as=Kept.HASHES)
        bundle = exported(db, folders.root / "bundle.ndjson", keys)
        told = json.loads(compare(a, b, "--evidence", bundle, "--policy", "sampling", "--json").stdout)
        assert told["evidence"]["between"] == {"equal": 39, "forked": 1}
        gates = {one["gate"]: one for one in told["verdicts"]["gates"]}
        assert gates["sampling"]["answer"] == "error"
        assert "reads token IDs" in gates["sampling"]["reason"]

    def test_sealed_evidence_is_read_with_its_key_and_not_without(self, folders: Folders) -> None:
        a, b = folders.side("a"), folders.side("b", os__libc="2")
        key = folders.root / "key"
        key.write_text("7" * 64)
        kept = [answered(f"c{n}", folders.digest(a), folders.digest(b)) for n in range(40)]
        db = store(folders.root / "e.db", *kept, keys=Keyring(current=key_of(key.read_text())))
        asked = (a, b, "--evidence", db, "--level", "token", "--forks-at-most", "0.1")
        assert "sealed" in compare(*asked, status=4).stderr
        compare(*asked, "--key-file", key)

    def test_answers_of_others_are_named(self, folders: Folders) -> None:
        a, b, c = folders.side("a"), folders.side("b", os__libc="2"), folders.side("c", os__libc="3")
        signed = folders.digest(a), folders.digest(c)
        db = store(folders.root / "e.db", answered("one", *signed))
        told = compare(a, b, "--evidence", db, "--level", "token", status=3).stdout
        assert f"1 pairs were answered by {signed[1]}" in told


class TestMatrix:
    def test_more_than_two_are_a_matrix_of_all_pairs(self, folders: Folders) -> None:
        sides = [
            folders.side("a"),
            folders.side("b", os__libc="2"),
            folders.side("c", precision__dtype="bfloat16"),
        ]
        signed = folders.digest(sides[0]), folders.digest(sides[1])
        db = store(folders.root / "e.db", *(answered(f"c{n}", *signed) for n in range(40)))
        told = compare(*sides, "--evidence", db, "--forks-at-most", "0.1").stdout
        assert told.splitlines()[:3] == [
            "   b      c",
            "a  token  (statistical)",
            "b         (statistical)",
        ]
        assert "a and b: token level shown" in told
        pairs = json.loads(compare(*sides, "--evidence", db, "--json").stdout)["pairs"]
        assert [(one["a"]["name"], one["b"]["name"]) for one in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
        assert [one["can"] for one in pairs] == ["token", "statistical", "statistical"]

    def test_its_status_is_that_of_the_worst_pair(self, folders: Folders) -> None:
        sides = [folders.side("a"), folders.side("b"), folders.side("c", precision__dtype="bfloat16")]
        compare(*sides, "--level", "artifact")
        compare(*sides[:2], "--level", "token", status=3)
        compare(*sides, "--level", "token", status=1)


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "give two environments, A and B"),
            (("a",), "give two environments, A and B"),
            (("a", "a", "--policy", "audit"), "--policy: of which evidence?"),
            (("a", "a", "--rollout", "r"), "--rollout: of which evidence?"),
            (
                ("a", "a", "--level", "bit"),
                "--level: 'bit' is not one of artifact, environment, token, statistical",
            ),
            (
                ("a", "nowhere"),
                "nowhere: no such file or folder, and no forkgate.yaml whose pool it could be",
            ),
            (("a", "model"), "model: no record is in it"),
            (("a", "a", "--evidence", "nowhere.ndjson"), "--evidence nowhere.ndjson: cannot be read"),
            (("a", "both"), "a bundle in which each pool was one environment as --evidence alone"),
            (("a", "changed.json"), "it was changed after it was made"),
        ],
    )
    def test_what_is_wrong_is_said_with_the_way_out(
        self, folders: Folders, arguments: tuple[str, ...], message: str
    ) -> None:
        a, b = folders.side("a"), folders.side("b", os__libc="2")
        both = folders.root / "both"
        both.mkdir()
        for name, folder in (("a", a), ("b", b)):
            (both / f"{name}.json").write_bytes((folder / "environment.json").read_bytes())
        changed = (a / "environment.json").read_text().replace('"float32"', '"float16"')
        (folders.root / "changed.json").write_text(changed)
        assert message in compare(*arguments, status=2).stderr

    def test_evidence_without_records_needs_both_sides(self, folders: Folders) -> None:
        db = store(folders.root / "e.db", answered("one", None, None))
        assert "so A and B must be given" in compare("--evidence", db, status=2).stderr

    def test_a_rollout_that_is_not_there_is_named(self, folders: Folders) -> None:
        a = folders.side("a")
        db = store(folders.root / "e.db", answered("one", None, None))
        told = compare(a, a, "--evidence", db, "--rollout", "other", status=2).stderr
        assert "knows no rollout 'other'; it knows old-to-new" in told

    def test_a_line_that_is_no_comparison_is_named(self, folders: Folders) -> None:
        a = folders.side("a")
        bad = folders.root / "bad.ndjson"
        bad.write_text('\n{"comparison": {}}\n')
        assert "line 2: " in compare(a, a, "--evidence", bad, status=2).stderr

    def test_an_engine_that_does_not_answer_could_not_be_measured(self, folders: Folders) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        assert "is the engine up" in compare(folders.side("a"), url, status=4).stderr


HOSTILE = {
    "verdicts that are no list": {"verdicts": "abc"},
    "an arm that is a list": {"baseline": []},
    "pools that are a number": {"baseline": {"pools": 5}},
    "a pool without a name": {"candidate": {"pools": [{}]}},
    "digests that are a number": {"baseline": {"environments": 3}},
    "a policy that is a number": {"policy": 3},
    "gates without names": {"policy": {"gates": [1]}},
    "a version to come": {"bundle": "evidence/2"},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bundle_whose_head_is_forged_is_told_and_never_a_traceback(
    what: str, tmp_path: pathlib.Path
) -> None:
    bundle = tmp_path / "bundle.ndjson"
    record = {"record": "forkgate/environment/1", "digest": "sha256:x", "fields": 7}
    lines = [{"bundle": "evidence/1", **HOSTILE[what]}, record]
    bundle.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = compare("--evidence", bundle, status=2)
    assert "its head is none: " in told.output


def test_a_bundle_with_forged_records_is_told_and_never_a_traceback(tmp_path: pathlib.Path) -> None:
    bundle = tmp_path / "bundle.ndjson"
    arm = {"environments": ["sha256:x"], "artifacts": ["q", "z"]}
    lines = [
        {"bundle": "evidence/1", "baseline": arm, "candidate": arm},
        {"record": environment_record.RECORD, "digest": "sha256:x", "fields": 7},
        {"record": "other", "digest": "q"},
        {"record": "other", "digest": "z"},
    ]
    bundle.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "fields: must be an object" in compare("--evidence", bundle, status=2).output


def test_evidence_from_a_pipe_is_refused_for_it_is_read_more_than_once(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    told = compare("a", "b", "--evidence", tmp_path / "pipe", status=2)
    assert "write it to a file first" in told.output


def test_of_a_bundle_given_as_a_side_only_records_are_parsed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred megabytes of comparisons stand behind two records."""
    parsed: list[bytes] = []

    def parse(text: bytes) -> Any:
        parsed.append(text)
        return canonical.parse(text)

    monkeypatch.setattr(sources, "parse", parse)
    lines = tmp_path / "bundle.ndjson"
    lines.write_bytes(b'{"record": "other"}\n' + b'{"capture_id": "c"}\n' * 1000)
    assert "no record is in it" in compare(lines, lines, status=2).output
    assert len(parsed) == 2  # the file as one value, and its one record
    lines.write_bytes(b'{"capture_id": "c"}\n' * 1000)
    compare(lines, lines, status=2)
    assert len(parsed) == 2

"""What two records say by themselves: each rule alone."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from engines.identity.artifact import ArtifactRecord, record_artifact
from engines.identity.environment import FIELDS
from engines.identity.levels import ARTIFACT, ENVIRONMENT, TOKEN, Can, Obstacle, Reach, Side, Weight, reach
from engines.identity.record import Identity, UnknownField
from tests.support.artifacts import model_folder, safetensors

IMAGE = "sha256:" + "a" * 64
OTHER_IMAGE = "sha256:" + "b" * 64
KNOWN: dict[str, Any] = {
    row.name.replace("*", "0"): "x"
    for row in FIELDS
    if not row.name.startswith(("variable", "engine.flag")) and row.name != "container.image"
} | {"variables": "seen", "engine.flags_unlisted": [], "container.image": {"digest": IMAGE}}
"""A record that knows everything."""
INVARIANT = {"determinism.batch_invariant": True}
ON_CPU = {"engine.device": "cpu", "gpu.count": 0}


@pytest.fixture
def files(tmp_path: pathlib.Path) -> ArtifactRecord:
    return record_artifact(model_folder(tmp_path / "m"), image_digest=IMAGE)


def side(name: str, files: ArtifactRecord | None, **fields: Any) -> Side:
    """``fields`` have ``__`` for dots."""
    told = {key.replace("__", "."): value for key, value in fields.items()}
    served = {} if files is None else {"artifact.digest": files.digest}
    return Side(name=name, environment=Identity(fields={**KNOWN, **served, **told}), artifact=files)


def named(found: Reach, what: str) -> Obstacle:
    return next(one for one in (*found.obstacles, *found.remarks) if one.what == what)


def test_everything_known_and_equal_shows_artifact_and_environment(files: ArtifactRecord) -> None:
    found = reach(side("a", files, **_(INVARIANT)), side("b", files, **_(INVARIANT)))
    assert dict(found.can) == {ARTIFACT: Can.YES, ENVIRONMENT: Can.YES, TOKEN: Can.YES}
    assert found.obstacles == ()
    assert found.remarks == ()


def test_no_records_at_all_is_not_known_and_says_how_to_get_them() -> None:
    found = reach(Side(name="a"), Side(name="b"))
    assert set(found.can.values()) == {Can.UNKNOWN}
    assert [one.what for one in found.obstacles] == [
        "artifact record of a and b",
        "container.image",
        "environment record of a and b",
    ]
    assert "forkgate artifact record" in found.obstacles[0].todo
    assert "forkgate environment capture" in found.obstacles[2].todo


def test_a_record_that_is_missing_cannot_be_vouched_for() -> None:
    found = reach(Side(name="a"), Side(name="b"), vouch=["*"])
    assert found.vouched == ("container.image",)
    assert set(found.can.values()) == {Can.UNKNOWN}


class TestArtifact:
    def test_other_weights_bar_all_three_and_come_first(
        self, files: ArtifactRecord, tmp_path: pathlib.Path
    ) -> None:
        folder = model_folder(tmp_path / "n")
        (folder / "model.safetensors").write_bytes(safetensors({"w": 3}, fill=b"\x22"))
        other = record_artifact(folder, image_digest=IMAGE)
        found = reach(side("a", files, os__libc="1"), side("b", other, os__libc="2"))
        assert dict(found.can) == {ARTIFACT: Can.NO, ENVIRONMENT: Can.NO, TOKEN: Can.NO}
        assert found.obstacles[0].what == "weight changed: model.safetensors"
        assert found.obstacles[0].weight is Weight.NATURE
        assert "other weights give other logits" in found.obstacles[0].why

    def test_a_file_under_another_name_is_told_and_bars_nothing(
        self, files: ArtifactRecord, tmp_path: pathlib.Path
    ) -> None:
        folder = model_folder(tmp_path / "n")
        (folder / "model.safetensors").rename(folder / "weights.safetensors")
        other = record_artifact(folder, image_digest=IMAGE)
        found = reach(side("a", files, **_(INVARIANT)), side("b", other, **_(INVARIANT)))
        assert set(found.can.values()) == {Can.YES}
        assert [one.what for one in found.remarks] == ["weight renamed: model.safetensors"]

    def test_json_with_other_spacing_is_another_artifact_in_the_same_environment(
        self, files: ArtifactRecord, tmp_path: pathlib.Path
    ) -> None:
        folder = model_folder(tmp_path / "n")
        config = folder / "config.json"
        config.write_text(config.read_text() + "\n\n")
        other = record_artifact(folder, image_digest=IMAGE)
        found = reach(side("a", files, **_(INVARIANT)), side("b", other, **_(INVARIANT)))
        assert dict(found.can) == {ARTIFACT: Can.NO, ENVIRONMENT: Can.YES, TOKEN: Can.YES}

    def test_an_image_that_nobody_tells_is_not_known_to_be_equal(self, tmp_path: pathlib.Path) -> None:
        files = record_artifact(model_folder(tmp_path / "m"))
        unknown = UnknownField("not given")
        a, b = (side(name, files, container__image=unknown, **_(INVARIANT)) for name in "ab")
        found = reach(a, b)
        assert dict(found.can) == {ARTIFACT: Can.UNKNOWN, ENVIRONMENT: Can.UNKNOWN, TOKEN: Can.YES}
        assert named(found, "container.image").weight is Weight.UNKNOWN
        assert "not told by a and b" in named(found, "container.image").why
        assert reach(a, b, vouch=["container.image"]).can[ENVIRONMENT] is Can.YES

    def test_the_environment_record_may_tell_the_image_that_the_artifact_record_lacks(
        self, files: ArtifactRecord, tmp_path: pathlib.Path
    ) -> None:
        bare = record_artifact(model_folder(tmp_path / "n"))
        found = reach(side("a", files, **_(INVARIANT)), side("b", bare, **_(INVARIANT)))
        assert found.can[ARTIFACT] is Can.YES

    def test_another_image_is_another_artifact(self, files: ArtifactRecord, tmp_path: pathlib.Path) -> None:
        other = record_artifact(model_folder(tmp_path / "n"), image_digest=OTHER_IMAGE)
        found = reach(side("a", files, **_(INVARIANT)), side("b", other, **_(INVARIANT)))
        assert dict(found.can) == {ARTIFACT: Can.NO, ENVIRONMENT: Can.NO, TOKEN: Can.YES}

    def test_a_digest_and_a_local_id_cannot_be_compared(self, files: ArtifactRecord) -> None:
        bare = ArtifactRecord(files=files.files, templates=files.templates, image={"id": IMAGE}, about={})
        found = reach(
            Side(name="a", artifact=files, environment=side("a", files).environment),
            Side(name="b", artifact=bare),
        )
        assert "cannot be compared" in named(found, "container.image").why

    def test_without_records_the_engines_own_digests_are_compared(self) -> None:
        same = [side(name, None, artifact__digest="sha256:1", **_(INVARIANT)) for name in "ab"]
        assert reach(*same).can[ARTIFACT] is Can.YES
        other = side("b", None, artifact__digest="sha256:2", **_(INVARIANT))
        found = reach(same[0], other)
        assert dict(found.can) == {ARTIFACT: Can.NO, ENVIRONMENT: Can.NO, TOKEN: Can.UNKNOWN}
        assert "give the artifact records" in named(found, "artifact.digest").todo

    def test_a_record_of_other_files_than_the_engine_serves_shows_nothing(
        self, files: ArtifactRecord
    ) -> None:
        wrong = Side(
            name="b",
            artifact=files,
            environment=Identity(fields={**KNOWN, **INVARIANT, "artifact.digest": "sha256:other"}),
        )
        found = reach(side("a", files, **_(INVARIANT)), wrong)
        assert set(found.can.values()) == {Can.UNKNOWN}
        assert named(found, "artifact record of b").b == "sha256:other"


class TestEnvironment:
    def test_precision_moves_tokens_whatever_is_set(self, files: ArtifactRecord) -> None:
        found = reach(
            side("a", files, precision__dtype="float32", **_(INVARIANT)),
            side("b", files, precision__dtype="bfloat16", **_(INVARIANT)),
        )
        assert dict(found.can) == {ARTIFACT: Can.YES, ENVIRONMENT: Can.NO, TOKEN: Can.NO}
        assert found.obstacles[0].weight is Weight.NATURE
        assert (found.obstacles[0].a, found.obstacles[0].b) == ("float32", "bfloat16")

    @pytest.mark.parametrize(
        "field",
        ["precision.quantization", "precision.kv_cache_dtype", "precision.tf32", "engine.model_overrides"],
    )
    def test_so_do_quantization_the_kv_cache_tf32_and_another_model(
        self, files: ArtifactRecord, field: str
    ) -> None:
        found = reach(side("a", files, **_(INVARIANT)), side("b", files, **_({**INVARIANT, field: "y"})))
        assert found.can[TOKEN] is Can.NO

    def test_another_gpu_makes_equal_tokens_unlikely_and_not_impossible(self, files: ArtifactRecord) -> None:
        found = reach(side("a", files, **_(INVARIANT)), side("b", files, gpu__0__name="H200", **_(INVARIANT)))
        assert dict(found.can) == {ARTIFACT: Can.YES, ENVIRONMENT: Can.NO, TOKEN: Can.UNLIKELY}
        assert "another GPU" in named(found, "gpu.0.name").why
        assert "equal hardware" in named(found, "gpu.0.name").todo

    def test_what_only_makes_other_batches_is_cancelled_by_batch_invariant_kernels(
        self, files: ArtifactRecord
    ) -> None:
        plain = reach(side("a", files), side("b", files, batch__max_sequences=8))
        assert plain.can[TOKEN] is Can.UNLIKELY
        invariant = reach(
            side("a", files, **_(INVARIANT)), side("b", files, batch__max_sequences=8, **_(INVARIANT))
        )
        assert dict(invariant.can) == {ARTIFACT: Can.YES, ENVIRONMENT: Can.NO, TOKEN: Can.YES}
        assert "both say that their kernels do not depend on the batch" in invariant.obstacles[0].why

    def test_kernels_are_not(self, files: ArtifactRecord) -> None:
        found = reach(
            side("a", files, **_(INVARIANT)), side("b", files, attention__backend="other", **_(INVARIANT))
        )
        assert found.can[TOKEN] is Can.UNLIKELY

    def test_without_batch_invariance_near_ties_may_flip_within_one_environment(
        self, files: ArtifactRecord
    ) -> None:
        found = reach(side("a", files), side("b", files, **_(INVARIANT), deterministic=True))
        told = named(found, "batches")
        assert told.levels == (TOKEN,)
        assert told.why.startswith("a: nothing says")
        assert "forkgate settings ENGINE --level token" in told.todo

    def test_one_request_at_a_time_needs_no_invariance(self, files: ArtifactRecord) -> None:
        found = reach(*(side(name, files, batch__max_sequences=1) for name in "ab"))
        assert found.obstacles == ()

    def test_what_rarely_moves_tokens_is_told_and_bars_nothing(self, files: ArtifactRecord) -> None:
        found = reach(side("a", files, **_(INVARIANT)), side("b", files, os__kernel="7", **_(INVARIANT)))
        assert found.can[ENVIRONMENT] is Can.YES
        assert [one.what for one in found.remarks] == ["os.kernel"]

    @pytest.mark.parametrize("both", [True, False])
    def test_unknown_is_never_equal(self, files: ArtifactRecord, both: bool) -> None:
        unknown = UnknownField("no library")
        a = side("a", files, cudnn__version=unknown, **_(INVARIANT))
        b = side("b", files, **_(INVARIANT), **({"cudnn__version": unknown} if both else {}))
        found = reach(a, b)
        assert dict(found.can) == {ARTIFACT: Can.YES, ENVIRONMENT: Can.UNKNOWN, TOKEN: Can.YES}
        assert named(found, "cudnn.version").why == ("no library" if both else "a: no library")
        assert "--vouch cudnn.version" in named(found, "cudnn.version").todo
        vouched = reach(a, b, vouch=["cudnn.*"])
        assert vouched.can[ENVIRONMENT] is Can.YES
        assert vouched.vouched == ("cudnn.version",)

    def test_an_unknown_precision_leaves_tokens_unknown_too(self, files: ArtifactRecord) -> None:
        unknown = UnknownField("not told")
        found = reach(*(side(name, files, precision__dtype=unknown, **_(INVARIANT)) for name in "ab"))
        assert found.can[TOKEN] is Can.UNKNOWN

    def test_what_differs_cannot_be_vouched_away(self, files: ArtifactRecord) -> None:
        found = reach(
            side("a", files, **_(INVARIANT)),
            side("b", files, cudnn__version="9", **_(INVARIANT)),
            vouch=["*"],
        )
        assert found.can[ENVIRONMENT] is Can.NO
        assert found.vouched == ()


class TestNotInUse:
    def test_a_gpus_libraries_do_not_matter_where_both_engines_run_on_a_cpu(
        self, files: ArtifactRecord
    ) -> None:
        a = side("a", files, cublas__version=UnknownField("none"), gpu__driver="1", **_(ON_CPU | INVARIANT))
        b = side("b", files, cublas__version=UnknownField("none"), gpu__driver="2", **_(ON_CPU | INVARIANT))
        found = reach(a, b)
        assert found.can[ENVIRONMENT] is Can.YES
        assert [(one.what, one.why) for one in found.remarks] == [
            ("gpu.driver", "nothing of either engine uses it")
        ]

    def test_they_do_where_one_of_them_runs_on_a_gpu(self, files: ArtifactRecord) -> None:
        a = side("a", files, cublas__version=UnknownField("none"), **_(ON_CPU | INVARIANT))
        b = side("b", files, engine__device="cuda", **_(INVARIANT))
        assert any(one.what == "cublas.version" for one in reach(a, b).obstacles)

    def test_nccl_does_not_matter_on_one_device(self, files: ArtifactRecord) -> None:
        one_device = {
            "parallel.tensor": 1,
            "parallel.pipeline": 1,
            "parallel.context": 1,
            "parallel.expert": False,
        }
        unknown = {"nccl.algorithm": UnknownField("NCCL_ALGO is not set")}
        sides = [side(name, files, **_(one_device | unknown | INVARIANT)) for name in "ab"]
        assert reach(*sides).can[ENVIRONMENT] is Can.YES
        split = [
            side(name, files, **_(one_device | unknown | INVARIANT | {"parallel.tensor": 2})) for name in "ab"
        ]
        assert reach(*split).can[ENVIRONMENT] is Can.UNKNOWN

    def test_on_a_cpu_engine_the_processor_is_likely_to_move_tokens(self, files: ArtifactRecord) -> None:
        a = side("a", files, cpu__model="EPYC", **_(ON_CPU | INVARIANT))
        b = side("b", files, cpu__model="Xeon", **_(ON_CPU | INVARIANT))
        assert named(reach(a, b), "cpu.model").weight is Weight.LIKELY
        on_gpu = [side(name, files, cpu__model=name, **_(INVARIANT)) for name in "ab"]
        assert named(reach(*on_gpu), "cpu.model").weight is Weight.PERHAPS


def test_obstacles_stand_by_weight_and_then_by_the_tables_order(files: ArtifactRecord) -> None:
    b = side(
        "b",
        files,
        os__libc="2",
        engine__version="2",
        precision__dtype="y",
        cudnn__version=UnknownField("none"),
        attention__backend="y",
    )
    found = reach(side("a", files), b)
    assert [(one.weight.value, one.what) for one in found.obstacles] == [
        ("by nature", "precision.dtype"),
        ("likely", "attention.backend"),
        ("likely", "engine.version"),
        ("perhaps", "os.libc"),
        ("perhaps", "batches"),
        ("unknown", "cudnn.version"),
    ]


def test_every_field_of_the_table_has_advice() -> None:
    from engines.identity.levels_fields import advice

    plain = "make it the same on both sides"
    without = [row.name for row in FIELDS if row.moves != "rarely" and advice(row.name) == plain]
    assert without == ["artifact.digest"]  # it is told apart, with advice of its own


def _(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "__"): value for name, value in fields.items()}

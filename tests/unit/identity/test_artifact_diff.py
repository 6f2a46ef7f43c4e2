"""Differences of two artifacts: their order, and what they mean."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from engines.identity.artifact import ArtifactRecord, record_artifact
from engines.identity.artifact_diff import Difference, Moves, diff_artifacts
from tests.support.artifacts import TEMPLATE, gguf, model_folder, safetensors


def recorded(folder: pathlib.Path, **files: Any) -> ArtifactRecord:
    return record_artifact(model_folder(folder, **files))


def short(found: tuple[Difference, ...]) -> list[tuple[str, str, str]]:
    return [(one.moves.value, one.what, one.path) for one in found]


def test_equal_artifacts_have_no_difference(tmp_path: pathlib.Path) -> None:
    assert diff_artifacts(recorded(tmp_path / "a"), recorded(tmp_path / "b")) == ()


def test_what_moves_tokens_most_surely_comes_first(tmp_path: pathlib.Path) -> None:
    a = recorded(tmp_path / "a", adapter_model__bin=b"one", only_a__xyz="x")
    b = recorded(
        tmp_path / "b",
        adapter_model__bin=b"two",
        model__safetensors=safetensors({"wte": 64, "head": 64}, dtype="F32"),
        tokenizer__json="{}",
        tokenizer_config__json='{"chat_template": "other"}',
        config__json='{"model_type": "qwen"}',
        generation_config__json='{"temperature": 0.6 }',
    )
    assert short(diff_artifacts(a, b)) == [
        ("surely", "weight changed", "model.safetensors"),
        ("surely", "adapter changed", "adapter_model.bin"),
        ("likely", "tokenizer changed", "tokenizer.json"),
        ("likely", "tokenizer changed", "tokenizer_config.json"),
        ("likely", "chat template", "default"),
        ("likely", "config changed", "config.json"),
        ("perhaps", "other only in A", "only_a.xyz"),
        ("no", "generation_config changed", "generation_config.json"),
    ]
    mirrored = diff_artifacts(b, a)
    assert [one.moves for one in mirrored] == sorted((one.moves for one in mirrored), key=list(Moves).index)


def test_another_precision_is_told_from_other_values(tmp_path: pathlib.Path) -> None:
    a = recorded(tmp_path / "a")
    wide = recorded(tmp_path / "b", model__safetensors=safetensors({"wte": 64, "head": 64}, dtype="F32"))
    more = recorded(tmp_path / "c", model__safetensors=safetensors({"wte": 64, "head": 65}))
    (one,) = diff_artifacts(a, wide)
    assert one.meaning.startswith("another precision, so every product is rounded otherwise")
    assert one.a is not None
    assert one.a.endswith("BF16")
    (other,) = diff_artifacts(a, more)
    assert other.meaning.startswith("another number of tensors or parameters")


def test_a_renamed_file_moves_nothing(tmp_path: pathlib.Path) -> None:
    a = recorded(tmp_path / "a")
    folder = model_folder(tmp_path / "b")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (one,) = diff_artifacts(a, record_artifact(folder))
    assert (one.moves, one.a, one.b) == (Moves.NO, "model.safetensors", "weights.safetensors")


@pytest.mark.parametrize(
    ("files", "meaning"),
    [
        (
            {"config__json": '{ "eos_token_id": 2,\n "model_type": "llama" }'},
            "the same JSON values, written with other spacing or order",
        ),
        ({"chat_template__jinja": TEMPLATE + "\n"}, None),
        (
            {"chat_template__jinja": TEMPLATE.replace("\n", "\r\n")},
            "the same template as Jinja reads it: only its line ends differ",
        ),
    ],
    ids=["spacing", "one more line end counts", "line ends"],
)
def test_what_is_only_written_otherwise_moves_nothing(
    tmp_path: pathlib.Path, files: dict[str, str], meaning: str | None
) -> None:
    a = recorded(tmp_path / "a", chat_template__jinja=TEMPLATE)
    found = diff_artifacts(a, recorded(tmp_path / "b", **{"chat_template__jinja": TEMPLATE, **files}))
    if meaning is None:
        assert {one.moves for one in found} == {Moves.LIKELY}
    else:
        assert [(one.moves, one.meaning) for one in found] == [(Moves.NO, meaning)]


def test_a_template_in_another_container_is_the_same(tmp_path: pathlib.Path) -> None:
    folder = recorded(tmp_path / "a", tokenizer_config__json="{}", chat_template__jinja=TEMPLATE)
    (tmp_path / "m.gguf").write_bytes(gguf())
    found = diff_artifacts(folder, record_artifact(tmp_path / "m.gguf"))
    (one,) = (one for one in found if one.path == "chat_template.jinja")
    assert (one.moves, one.meaning) == (Moves.NO, "the other keeps the same template in another file")
    assert not [one for one in found if one.what == "chat template"]


def test_images_are_compared_only_when_both_are_known(tmp_path: pathlib.Path) -> None:
    folder = model_folder(tmp_path / "m")
    one, two = (record_artifact(folder, image_digest="sha256:" + digit * 64) for digit in "12")
    assert short(diff_artifacts(one, two)) == [("likely", "runtime image", "image")]
    assert short(diff_artifacts(one, record_artifact(folder))) == [("perhaps", "runtime image", "image")]

"""The suite that ships is what its templates make, and is as wide as it is said to be."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hatchling.builders.wheel import WheelBuilder

from policies.suites import parse_suite, shipped
from policies.suites.sample import Check, Exact, JsonSchema, Numeric, Regex, Sample
from tools.starter_suite import found, render, suite
from tools.starter_suite.__main__ import main
from tools.starter_suite.template import Template, digest, instances
from tools.starter_suite.templates import TEMPLATES

ROOT = Path(__file__).parents[3]
BYTES = suite.TARGET.read_bytes()
SAMPLES = parse_suite(BYTES, "starter.jsonl", "starter").samples


def checks_of(sample: Sample) -> list[Check]:
    return [one for one in (*sample.rules, sample.answer, sample.structured) if one is not None]


def test_the_file_is_what_its_templates_make_byte_for_byte() -> None:
    assert render() == {suite.TARGET: suite.TARGET.read_text(encoding="utf-8")}
    assert main(["--check"]) == 0


def test_there_are_a_thousand_samples_of_seven_categories() -> None:
    assert len(SAMPLES) == 1000
    assert Counter(one.category for one in SAMPLES) == suite.SIZES
    assert set(suite.SIZES) == {
        "short", "long_context", "chinese", "code", "structured_output", "near_stop", "low_margin",
    }  # fmt: skip


def test_no_template_dominates() -> None:
    of_template = Counter(one.template for one in SAMPLES)
    assert len(of_template) >= 200
    assert max(of_template.values()) <= 10


def test_templates_differ_in_more_than_a_noun() -> None:
    """No two ask in the same words once their slots are blanked."""
    blank = [re.sub(r"\$\w+|\$\{\w+\}", "_", f"{one.system}{one.before}{one.ask}") for one in TEMPLATES]
    assert len(set(blank)) == len(TEMPLATES)
    words = [frozenset(re.findall(r"\w+", text.lower())) for text in blank]
    alike = [
        (TEMPLATES[a].name, TEMPLATES[b].name)
        for a in range(len(words))
        for b in range(a)
        if len(words[a] & words[b]) > 0.75 * len(words[a] | words[b])
    ]
    assert alike == []


def test_ids_and_prompts_are_unique() -> None:
    assert len({one.id for one in SAMPLES}) == 1000
    assert len({digest(one) for one in SAMPLES}) == 1000


def test_every_sample_is_whole() -> None:
    for one in SAMPLES:
        assert bool(one.messages) != (one.prompt is not None), one.id
        assert 8 <= one.max_tokens <= 96, one.id
        asked = one.prompt or one.messages[-1].content
        assert asked.strip(), one.id
        assert not one.messages or one.messages[-1].role == "user", one.id


def test_every_check_is_well_formed() -> None:
    for one in SAMPLES:
        for check in checks_of(one):
            if isinstance(check, Regex):
                re.compile(check.pattern)
            elif isinstance(check, JsonSchema):
                jsonschema.Draft202012Validator.check_schema(check.schema)
            elif isinstance(check, Exact):
                assert check.expected, one.id
                assert all(check.expected), one.id
            else:
                assert isinstance(check, Numeric), one.id


def test_every_category_has_answers_or_shapes_to_score() -> None:
    scored = Counter(
        one.category for one in SAMPLES if one.answer or one.structured or one.rules or one.found
    )
    for category, size in suite.SIZES.items():
        assert scored[category] >= 0.6 * size, category
    assert sum(one.answer is not None for one in SAMPLES) >= 300
    assert sum(one.structured is not None for one in SAMPLES) >= 120
    assert sum(bool(one.rules) for one in SAMPLES) >= 100


def test_no_scorer_passes_an_empty_answer() -> None:
    for one in SAMPLES:
        if isinstance(one.answer, Regex):
            assert one.answer.must_match, one.id
            assert not re.search(one.answer.pattern, ""), one.id


def test_rules_stand_only_where_the_model_was_seen_to_keep_them() -> None:
    rules = found.read_rules()
    assert set(rules.kept) <= set(rules.tried)
    ruled = [one for one in SAMPLES if one.rules]
    assert {digest(one) for one in ruled} <= set(rules.kept)
    assert all(one.temperature == 0 for one in ruled)


def test_a_searched_sample_says_where_its_near_call_is() -> None:
    searched = [one for one in SAMPLES if one.category in ("near_stop", "low_margin")]
    assert all(bool(one.found) == (one in searched) for one in SAMPLES)
    kept = found.read_found()
    for one in searched:
        told = {key: one.found[key] for key in found.Near.__struct_fields__ if key in one.found}
        near = msgspec.convert({**told, "template": one.template, "digest": digest(one)}, found.Near)
        assert near in kept, one.id
        assert re.fullmatch("[0-9a-f]{64}", one.found["weights_sha256"]), one.id
        assert 0 <= near.position < one.max_tokens, one.id
        assert near.first.id != near.second.id, one.id
        if one.category == "near_stop":
            assert near.end_of_turn in ("first", "second"), one.id
            assert 0 <= near.margin_nats <= 1.0, one.id
        else:
            assert near.end_of_turn is None, one.id
            assert 0 <= near.margin_nats <= 0.05, one.id


def test_some_samples_are_sampled_and_carry_no_answer_of_one_right_text() -> None:
    warm = [one for one in SAMPLES if one.temperature > 0]
    assert 40 <= len(warm) <= 120
    assert all(0.7 <= one.temperature <= 1.0 and one.answer is None for one in warm)


def test_one_pass_is_affordable() -> None:
    assert sum(one.max_tokens for one in SAMPLES) < 40_000
    assert suite.TARGET.stat().st_size < 2_000_000


def test_long_prompts_fit_a_window_of_2048_tokens() -> None:
    """By bytes, since no tokenizer is at hand here: the longest was 1,285 tokens of the reference model."""
    bytes_of = [len(msgspec.json.encode((one.messages, one.prompt))) for one in SAMPLES]
    assert max(bytes_of) < 4_500
    longer = sum(size > 1_000 for size in bytes_of)
    assert longer >= suite.SIZES["long_context"] * 0.8


def test_the_wheel_carries_it() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert "policies/suites/shipped/starter.jsonl" in packed
    assert shipped("starter") == BYTES


def test_instances_do_not_depend_on_how_many_are_asked_for() -> None:
    for template in TEMPLATES:
        assert instances(template, 3) == instances(template, 10)[:3], template.name


def test_a_template_changed_since_the_search_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = next(one for one in TEMPLATES if one.category == "near_stop")
    other: Template = msgspec.structs.replace(changed, ask="Please. " + changed.ask)
    monkeypatch.setattr(suite, "TEMPLATES", tuple(other if one is changed else one for one in TEMPLATES))
    with pytest.raises(suite.SuiteError, match=rf"^{changed.name}: changed since .* --search all`$"):
        suite.samples()


def test_drift_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drifted = tmp_path / "starter.jsonl"
    drifted.write_bytes(BYTES[: BYTES.rindex(b"{")])
    monkeypatch.setattr(suite, "TARGET", drifted)
    monkeypatch.setattr("tools.starter_suite.__main__.TARGET", drifted)
    assert main(["--check"]) == 1
    assert "run `python -m tools.starter_suite`" in capsys.readouterr().err

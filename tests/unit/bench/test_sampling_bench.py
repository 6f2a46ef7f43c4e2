"""The bench over sampled answers: honest resamples, the published statistic, tables of what was found."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pytest

from bench.sampling import fixed, ours
from bench.sampling.__main__ import fixed_n, sequential
from bench.sampling.data import DataError, read
from bench.sampling.resample import REPLICATES, Pool


def answers(seed: int, warm: float = 1.0) -> list[list[tuple[int, ...]]]:
    """Three prompts, eight seeds."""
    rng = random.Random(seed)
    weights = [2.0 ** (-token / warm) for token in range(8)]
    return [[tuple(rng.choices(range(8), weights, k=rng.randint(3, 5))) for _ in range(8)] for _ in range(3)]


@pytest.mark.parametrize(("coupled", "equal"), [(True, False), (False, False), (False, True), (True, True)])
def test_no_answer_comes_twice_in_a_stream_and_arms_are_as_said(coupled: bool, equal: bool):
    pool = Pool(answers(1), answers(2))
    order, picks = pool.stream(np.random.default_rng(3), coupled=coupled, equal=equal)
    assert len(order) == pool.most == 6
    used = [(int(prompt), int(i)) for prompt, pick in zip(order, picks, strict=True) for i in pick.ravel()]
    assert len(set(used)) == len(used)
    assert len(set(order[:3].tolist())) == 3
    if not equal:
        assert (picks[:, 0] < 8).all()
        assert (picks[:, 1] >= 8).all()
    if coupled:
        assert (picks[:, 0] % 8 == picks[:, 1] % 8).all()


def test_the_published_statistic_is_the_mean_kernel_within_prompts():
    pool = Pool(answers(1), answers(2, 3.0))
    kernel = fixed.Kernel(pool)
    order, picks = pool.stream(np.random.default_rng(1), coupled=False, equal=False)
    _, found = fixed.equality_test(kernel, order, picks, 3, np.random.default_rng(0))
    rows = [
        [(p, tuple(kernel.padded[p, i])) for p, pick in zip(order, picks, strict=True) for i in pick[arm]]
        for arm in (0, 1)
    ]

    def mean(first: int, second: int) -> float:
        values = [
            float(np.mean(np.array(x) == np.array(y)))
            for i, (p, x) in enumerate(rows[first])
            for j, (q, y) in enumerate(rows[second])
            if p == q and (first != second or i != j)
        ]
        return float(np.mean(values))

    assert found == pytest.approx(mean(0, 0) - 2 * mean(0, 1) + mean(1, 1), abs=1e-6)


def test_the_paired_statistic_is_the_squared_mean_difference():
    pool = Pool(answers(1), answers(2))
    kernel = fixed.Kernel(pool)
    order, picks = pool.stream(np.random.default_rng(2), coupled=False, equal=False)
    longest = kernel.padded.shape[-1]
    features = np.zeros((len(order), longest, 10))
    for n, (prompt, pick) in enumerate(zip(order, picks, strict=True)):
        for arm, sign in ((0, 1.0), (1, -1.0)):
            for i in pick[arm]:
                features[n, np.arange(longest), kernel.padded[prompt, i] + 1] += sign / REPLICATES
    expected = (features.sum(axis=0) ** 2).sum() / longest
    assert fixed.gram(kernel, order, picks).sum() == pytest.approx(expected, abs=1e-5)


def test_a_permutation_test_of_equal_rows_never_rejects():
    assert fixed.paired_test(np.zeros((5, 5)), 99, np.random.default_rng(0)) == 1.0


def test_a_stream_stops_where_the_gates_test_says_so():
    stops = ours.mmd_stops((answers(1), answers(1), True, False, 1, 3, 0.05))
    assert stops == [None, None, None]  # the same answers: nothing to bet on
    assert ours.bounds(answers(1), answers(1), 1, 1, 0.05)[0] < 0.5


def test_medians_count_what_was_not_found():
    found = sequential([10, None, 30, 20, None], tokens=8.0)
    assert found == {
        "found": 3, "of": 5, "comparisons": 30, "comparisons_p80": None, "tokens": 240, "tokens_p80": None,
    }  # fmt: skip


def test_a_fixed_n_is_the_first_from_which_power_stays():
    power = {5: 0.9, 10: 0.7, 20: 0.85, 40: 1.0}
    assert fixed_n(power, 2.0)["comparisons"] == 20
    assert fixed_n({5: 0.2}, 2.0)["tokens"] is None


def test_the_stored_answers_are_whole():
    environments, found = read()
    assert {"baseline", "again", "rebatched", "temperature .9"} <= set(environments)
    for name, by_prompt in found.items():
        assert len(by_prompt) == 40, name
        assert {len(said) for said in by_prompt} == {32}, name
    assert all(one.tv is not None and 0.0 <= one.tv <= 1.0 for one in environments.values())
    assert environments["baseline"].tv == 0.0


def test_same_seed_answers_differ_at_least_as_often_as_total_variation_says():
    """The coupling inequality on real answers; both sides are estimates, so four errors are allowed."""
    environments, found = read()
    for name, one in environments.items():
        if one.first_seed or one.tv is None or one.tv_error is None:
            continue
        pairs = [
            (a, b)
            for mine, other in zip(found[one.of], found[name], strict=True)
            for a, b in zip(mine, other, strict=True)
        ]
        share = sum(a != b for a, b in pairs) / len(pairs)
        assert share >= one.tv - 4 * (one.tv_error + (0.25 / len(pairs)) ** 0.5), name


def test_a_broken_folder_is_refused_in_words(tmp_path):
    with pytest.raises(DataError, match=r"bench\.sampling\.make"):
        read(tmp_path)
    (tmp_path / "environments.json").write_text(json.dumps([{"name": "a", "temperature": 1.0}]))
    with gzip.open(tmp_path / "generations.jsonl.gz", "wt") as file:
        file.write(json.dumps({"environment": "b", "prompt": 0, "answers": [[1]]}) + "\n")
    with pytest.raises(DataError, match="makes it"):
        read(tmp_path)

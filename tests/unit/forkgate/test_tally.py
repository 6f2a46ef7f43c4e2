"""Forks get their class against the floor that the controls have shown, arm by arm."""

from __future__ import annotations

import msgspec

from comparator.comparison import CONCURRENCY
from comparator.pair import Pair
from comparator.records import Arm, Fact
from comparator.taxonomy import ForkClass
from forkgate.judge.forks import Classifier, rows
from forkgate.judge.tally import Tally
from tests.support.exchanges import comparison, pair, step
from tests.support.judging import fork_seen

ALONE = {CONCURRENCY: Fact(value=1), "dtype": Fact(value="float32")}


def tie(
    gap_nats: float,
    *,
    right_gap_nats: float | None = None,
    right_arm: Arm = Arm.CANDIDATE,
    capture_id: str = "c",
) -> Pair:
    """The arms choose two tokens that are ``gap_nats`` apart on the left, and so far or more on the right."""
    other = gap_nats if right_gap_nats is None else right_gap_nats
    left = [step(1, [(1, -0.1), (9, -3.0)]), step(2, [(2, -0.7), (3, -0.7 - gap_nats)])]
    right = [step(1, [(1, -0.1), (9, -3.0)]), step(3, [(3, -0.7), (2, -0.7 - other)])]
    return pair(
        capture_id=capture_id,
        right_arm=right_arm,
        left={"steps": left, "facts": ALONE},
        right={"steps": right, "facts": ALONE},
    )


def test_a_candidates_fork_is_excused_by_what_its_controls_show_and_by_nothing_before() -> None:
    tally, classifier = Tally(), Classifier()
    (first,) = tally.comparison(comparison(tie(0.2)), classifier)
    assert first.attribution.fork_class is not ForkClass.TIE_FLIP
    assert "no noise floor" in first.attribution.reason
    for _ in range(5):
        noisy = tie(0.1, right_gap_nats=0.4, right_arm=Arm.CONTROL)  # rms change of margin: .21 nats
        (control,) = tally.comparison(comparison(noisy), classifier)
        assert control.arm is Arm.CONTROL
    (later,) = tally.comparison(comparison(tie(0.2)), classifier)
    assert later.attribution.fork_class is ForkClass.TIE_FLIP
    assert "no noise floor" not in later.attribution.reason
    assert (tally.pairs, tally.controls, tally.forks, tally.control_forks) == (2, 5, 2, 5)
    assert ("candidate", "tie_flip", 1) in list(rows(tally.by_class))


def test_a_mismatch_has_a_class_and_no_place() -> None:
    tally = Tally()
    (found,) = tally.comparison(comparison(pair((1,), (2,), right={"prompt": (0,)})), Classifier())
    assert found.attribution.fork_class is ForkClass.ENCODING_MISMATCH
    assert found.fork_index is None
    assert tally.reasons == {"encoding_mismatch": 1}


def test_equal_pairs_have_no_class() -> None:
    tally = Tally()
    assert tally.comparison(comparison(pair()), Classifier()) == []
    assert (tally.compared, tally.by_class.classes) == (1, {})


def test_a_fork_told_early_is_counted_once_and_a_controls_is_not_the_candidates() -> None:
    tally, seen = Tally(), fork_seen("c")
    tally.fork(seen)
    tally.fork(msgspec.structs.replace(seen, right_arm=Arm.CONTROL))
    assert tally.forks == 1
    tally.comparison(comparison(tie(2.0, capture_id="c")), Classifier())
    assert (tally.forks, tally.early) == (1, [])
    tally.comparison(comparison(tie(2.0, capture_id="d")), Classifier())
    assert tally.forks == 2


def test_a_tally_comes_back_from_a_checkpoint() -> None:
    tally = Tally()
    tally.comparison(comparison(tie(0.2), tie(0.2, right_arm=Arm.CONTROL)), Classifier())
    assert msgspec.json.decode(msgspec.json.encode(tally), type=Tally) == tally

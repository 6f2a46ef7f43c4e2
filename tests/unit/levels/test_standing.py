"""Records, evidence and verdicts put together: what can be, what is shown, what is in the way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engines.identity.levels import ENVIRONMENT, TOKEN, Can, Obstacle, Reach, Side, Weight
from forkgate.levels.evidence import FirstFork, Prompts, Seen
from forkgate.levels.gates import BadVerdicts, GateSaid, Judging, Verdicts, stored
from forkgate.levels.matrix import Cell, cell_of, table
from forkgate.levels.standing import Limits, Standing, stand, to_json
from forkgate.levels.words import headline, lines
from policies.policy import Level, load_policy
from policies.verdict import Answer
from tests.support.exchanges import comparison, pair

A, B = Side(name="a100"), Side(name="h100")
ALL_YES = Reach(
    can=dict.fromkeys(("artifact", "environment", "token"), Can.YES), obstacles=(), remarks=(), vouched=()
)
DTYPE = Obstacle(
    weight=Weight.NATURE,
    levels=(ENVIRONMENT, TOKEN),
    what="precision.dtype",
    a="float32",
    b="bfloat16",
    why="rounded",
    todo="one precision",
)
OTHER_DTYPE = Reach(
    can={"artifact": Can.YES, "environment": Can.NO, "token": Can.NO},
    obstacles=(DTYPE,),
    remarks=(),
    vouched=(),
)
ENOUGH = Seen(between=Prompts(equal=1_300), within=Prompts(equal=200), greedy=1_300)


def standing(reach: Reach = ALL_YES, **given: Any) -> Standing:
    return stand(A, B, reach, limits=given.pop("limits", Limits()), **given)


def said(answer: Answer, gate: str = "accuracy", **more: Any) -> Verdicts:
    return Verdicts(
        policy="open-answers",
        computed=more.pop("computed", True),
        gates=(GateSaid(gate=gate, answer=answer, n=7, reason="because", **more),),
    )


class TestToken:
    def test_nothing_is_shown_without_evidence(self) -> None:
        found = standing()
        assert (found.answers[Level.TOKEN].can, found.answers[Level.TOKEN].shown) == (Can.YES, False)
        (missing,) = found.of(Level.TOKEN)
        assert (missing.what, missing.weight) == ("evidence", Weight.MISSING)
        assert missing.levels == ("token", "statistical")

    def test_evidence_of_nobody_known_shows_nothing(self) -> None:
        found = standing(seen=Seen(foreign={"sha256:c": 3}, unproved=2))
        assert not found.answers[Level.TOKEN].shown
        assert [one.what for one in found.of(Level.TOKEN)] == ["evidence", "answers", "other environments"]

    def test_enough_equal_prompts_show_it_with_their_number_and_the_bound(self) -> None:
        found = standing(seen=ENOUGH)
        token = found.answers[Level.TOKEN]
        assert token.shown
        assert token.why == (
            "1,300 prompts answered equally, none forked: at most 0.23 % like them fork; nor did 200 "
            "controls fork"
        )
        assert found.of(Level.TOKEN) == ()

    def test_without_controls_that_is_said(self) -> None:
        seen = Seen(between=Prompts(equal=1_300), greedy=1_300)
        assert standing(seen=seen).answers[Level.TOKEN].why.endswith("; no control ran beside them")

    def test_fewer_are_not_enough_and_how_many_are_missing_is_said(self) -> None:
        found = standing(seen=Seen(between=Prompts(equal=300), greedy=300))
        assert (found.answers[Level.TOKEN].can, found.answers[Level.TOKEN].shown) == (Can.YES, False)
        (missing,) = found.of(Level.TOKEN)
        assert missing.todo == "compare 698 further prompts (998 in all)"

    def test_the_share_that_is_asked_decides(self) -> None:
        few = Seen(between=Prompts(equal=30), greedy=30)
        assert standing(seen=few, limits=Limits(forks_at_most=0.1)).answers[Level.TOKEN].shown

    def test_a_fork_ends_it_whatever_records_say(self) -> None:
        fork = FirstFork(capture_id="c-1", fork_index=22, fork_class="tie_flip", reason="near tie")
        seen = Seen(between=Prompts(equal=1_299, forked=1), first=fork, classes={"tie_flip": 1}, greedy=1_300)
        found = standing(seen=seen)
        assert found.answers[Level.TOKEN].can is Can.NO
        assert found.obstacles[0].weight is Weight.SEEN
        assert found.obstacles[0].why == (
            "1 of 1,300 prompts forked; the first at output token 22 of capture c-1 (tie flip)"
        )

    def test_a_baseline_that_forks_from_itself_comes_before_the_candidates_forks(self) -> None:
        seen = Seen(between=Prompts(equal=90, forked=10), within=Prompts(equal=8, forked=2), greedy=100)
        (fork,) = standing(seen=seen).of(Level.TOKEN)
        assert fork.todo.startswith("2 of 10 prompts forked within one environment, too: first start both")

    def test_equal_answers_of_an_environment_that_does_not_repeat_itself_show_nothing(self) -> None:
        found = standing(seen=Seen(between=Prompts(equal=1_300), within=Prompts(forked=1), greedy=1_300))
        assert not found.answers[Level.TOKEN].shown
        assert found.of(Level.TOKEN)[0].what == "controls"

    def test_what_was_seen_speaks_louder_than_what_records_make_likely(self) -> None:
        found = standing(OTHER_DTYPE, seen=ENOUGH)
        assert (found.answers[Level.TOKEN].can, found.answers[Level.TOKEN].shown) == (Can.YES, True)
        assert found.of(Level.TOKEN) == ()
        assert [one.what for one in found.of(Level.ENVIRONMENT)] == ["precision.dtype"]

    def test_without_evidence_records_decide(self) -> None:
        token = standing(OTHER_DTYPE).answers[Level.TOKEN]
        assert (token.can, token.why) == (Can.NO, "precision.dtype differs")


class TestStatistical:
    def test_gates_that_all_pass_show_it(self) -> None:
        seen = Seen(between=Prompts(equal=5, forked=5), greedy=10)
        found = standing(OTHER_DTYPE, seen=seen, verdicts=said(Answer.PASS))
        statistical = found.answers[Level.STATISTICAL]
        assert statistical.shown
        assert statistical.why == "policy open-answers: every gate passes (accuracy)"

    @pytest.mark.parametrize("answer", [Answer.INCONCLUSIVE, Answer.ERROR])
    def test_anything_but_a_pass_is_none(self, answer: Answer) -> None:
        seen = Seen(between=Prompts(equal=5, forked=5), greedy=10)
        found = standing(seen=seen, verdicts=said(answer))
        statistical = found.answers[Level.STATISTICAL]
        assert (statistical.can, statistical.shown) == (Can.YES, False)
        assert found.of(Level.STATISTICAL)[0].what == "gate accuracy"

    def test_a_gate_that_fails_rules_it_out(self) -> None:
        found = standing(seen=ENOUGH, verdicts=said(Answer.FAIL))
        assert found.answers[Level.STATISTICAL].can is Can.NO
        assert found.of(Level.STATISTICAL)[0].weight is Weight.SEEN

    def test_a_gate_that_wants_equal_tokens_rules_nothing_out_here(self) -> None:
        rows = [{**ROW, "gate": "token_equality", "answer": "fail"}, {**ROW, "gate": "length"}]
        seen = Seen(between=Prompts(equal=5, forked=5), greedy=10)
        found = standing(seen=seen, verdicts=stored(rows, None))
        statistical = found.answers[Level.STATISTICAL]
        assert (statistical.can, statistical.shown) == (Can.YES, False)
        assert statistical.why == "policy sha256:p: 1 of 2 gates do not pass"
        assert "asks for equal tokens" in found.of(Level.STATISTICAL)[0].why
        assert found.answers[Level.TOKEN].can is Can.NO

    def test_a_failed_gate_of_this_level_rules_it_out_beside_one_of_tokens(self) -> None:
        rows = [{**ROW, "gate": name, "answer": "fail"} for name in ("token_equality", "length")]
        seen = Seen(between=Prompts(equal=5, forked=5), greedy=10)
        found = standing(seen=seen, verdicts=stored(rows, None))
        assert found.answers[Level.STATISTICAL].can is Can.NO
        assert found.answers[Level.STATISTICAL].why == "policy sha256:p: length failed"

    def test_a_silent_gate_keeps_the_others_from_showing_it(self) -> None:
        verdicts = Verdicts(
            policy="p",
            computed=False,
            gates=(GateSaid(gate="length", answer=Answer.PASS, n=9, reason="r"),),
            silent=("refusal",),
        )
        seen = Seen(between=Prompts(equal=5, forked=5), greedy=10)
        found = standing(seen=seen, verdicts=verdicts)
        assert found.answers[Level.STATISTICAL].why == "policy p: 1 of 2 gates do not pass yet"

    def test_speed_alone_shows_nothing_about_answers(self) -> None:
        verdicts = said(Answer.PASS, gate="ttft", performance=True)
        seen = Seen(between=Prompts(equal=5, forked=5), greedy=10)
        assert not standing(seen=seen, verdicts=verdicts).answers[Level.STATISTICAL].shown

    @pytest.mark.parametrize("left_out", [{"foreign": {"sha256:c": 1}}, {"unproved": 1}])
    @pytest.mark.parametrize("answer", [Answer.PASS, Answer.FAIL])
    def test_stored_verdicts_that_rest_on_others_too_say_nothing_of_these(
        self, left_out: dict[str, Any], answer: Answer
    ) -> None:
        seen = Seen(between=Prompts(equal=5, forked=5), greedy=10, **left_out)
        found = standing(seen=seen, verdicts=said(answer, computed=False))
        assert (found.answers[Level.STATISTICAL].can, found.answers[Level.STATISTICAL].shown) == (
            Can.YES,
            False,
        )
        assert "rest on answers of other environments" in found.of(Level.STATISTICAL)[0].why

    def test_few_forks_bound_any_difference_of_answers(self) -> None:
        seen = Seen(between=Prompts(equal=5_997, forked=3), greedy=6_000)
        found = standing(seen=seen)
        assert found.answers[Level.TOKEN].can is Can.NO
        assert found.answers[Level.STATISTICAL].shown
        assert "of speed it says nothing" in found.answers[Level.STATISTICAL].why

    def test_many_do_not(self) -> None:
        seen = Seen(between=Prompts(equal=900, forked=100), greedy=1_000)
        found = standing(seen=seen)
        assert not found.answers[Level.STATISTICAL].shown
        assert found.of(Level.STATISTICAL)[0].what == "verdicts"


ROW = {
    "gate": "length",
    "answer": "pass",
    "n": 4,
    "reason": "r",
    "policy_digest": "sha256:p",
    "unix_s": 1.0,
}


class TestVerdicts:
    def test_the_newest_answer_of_each_gate_counts(self) -> None:
        older = {**ROW, "answer": "inconclusive", "unix_s": 0.5}
        found = stored([ROW, older], {"digest": "sha256:p", "name": "mine", "gates": ["length", "refusal"]})
        assert found is not None
        assert (found.policy, found.gates[0].answer, found.silent) == ("mine", Answer.PASS, ("refusal",))
        assert not found.passed

    def test_verdicts_under_an_older_policy_do_not(self) -> None:
        older = {**ROW, "gate": "refusal", "policy_digest": "sha256:q", "unix_s": 0.5}
        found = stored([older, ROW], None)
        assert found is not None
        assert [one.gate for one in found.gates] == ["length"]
        assert found.policy == "sha256:p"

    def test_none_are_none(self) -> None:
        assert stored([], None) is None

    def test_what_is_no_verdict_is_refused_with_its_place(self) -> None:
        with pytest.raises(BadVerdicts, match=r"verdicts: .*answer"):
            stored([{**ROW, "answer": "perhaps"}], None)

    def test_a_policys_gates_judge_the_comparisons_at_hand(self) -> None:
        policy = load_policy("level: token\nalpha: 0.05\ngates: {token_equality: {minimum_pairs: 2}}\n")
        equal = [comparison(pair(capture_id=str(n))) for n in range(2)]
        judging = Judging(policy)
        assert judging.verdicts().saying(Answer.INCONCLUSIVE)
        for one in equal:
            assert not judging.verdicts().passed
            judging.add(one)
        assert judging.verdicts().passed
        judging.add(comparison(pair(right_ids=(9,))))
        assert [one.equal_tokens for one in judging.verdicts().saying(Answer.FAIL)] == [True]

    def test_of_hashes_no_gate_that_reads_token_ids_says_anything(self) -> None:
        found = said(Answer.PASS, gate="sampling").not_of_hashes(("sampling",))
        assert (found.gates[0].answer, found.passed) == (Answer.ERROR, False)
        assert said(Answer.PASS).not_of_hashes(("sampling",)).passed


class TestWords:
    def test_the_first_line_answers_what_was_asked(self) -> None:
        found = standing(OTHER_DTYPE)
        assert headline(found, Level.ENVIRONMENT) == (
            "a100 and h100: not the same environment: precision.dtype differs"
        )
        assert headline(found, Level.ARTIFACT).startswith("a100 and h100: artifact level shown: ")
        assert headline(found) == (
            "a100 and h100: statistical level can be reached, not shown; token level cannot be reached: "
            "precision.dtype differs"
        )
        assert headline(standing(seen=ENOUGH)).startswith("a100 and h100: token level shown: 1,300 prompts")

    def test_only_what_stands_in_the_way_of_the_level_asked_for_is_listed(self) -> None:
        told = "\n".join(lines(standing(OTHER_DTYPE), Level.ARTIFACT))
        assert "in the way" not in told
        assert "by nature  precision.dtype: float32 | bfloat16  [environment, token]" in "\n".join(
            lines(standing(OTHER_DTYPE))
        )

    def test_many_unknown_fields_are_one_line(self) -> None:
        unknown = tuple(
            Obstacle(
                weight=Weight.UNKNOWN, levels=(ENVIRONMENT,), what=f"f{n}", why="?", todo="", vouchable=True
            )
            for n in range(12)
        )
        reach = dataclasses.replace(
            ALL_YES, can={**ALL_YES.can, "environment": Can.UNKNOWN}, obstacles=unknown
        )
        told = lines(standing(reach, seen=ENOUGH))
        assert sum("f6" in line for line in told) == 1
        assert any("f7 and 4 more  [environment]" in line for line in told)

    def test_what_to_do_is_said_once_for_several_in_a_row(self) -> None:
        kv = dataclasses.replace(DTYPE, what="precision.kv_cache_dtype")
        told = lines(standing(dataclasses.replace(OTHER_DTYPE, obstacles=(DTYPE, kv))))
        assert sum("do: one precision" in line for line in told) == 1

    def test_plain_data_has_everything(self) -> None:
        plain = to_json(standing(OTHER_DTYPE, seen=ENOUGH, verdicts=said(Answer.PASS)))
        assert plain["levels"]["token"]["shown"] is True
        assert plain["evidence"]["between"] == {"equal": 1_300, "forked": 0}
        assert plain["evidence"]["unseen_forks_at_most"] == pytest.approx(0.0023, abs=1e-5)
        assert plain["verdicts"]["gates"][0]["answer"] == "pass"
        assert plain["in_the_way"][0]["what"] == "precision.dtype"


class TestMatrix:
    def test_a_cell_names_the_strictest_shown_and_the_strictest_that_can_be(self) -> None:
        assert cell_of(standing(seen=ENOUGH)) == Cell(shown=Level.ENVIRONMENT, can=Level.ENVIRONMENT)
        assert cell_of(standing(OTHER_DTYPE)) == Cell(shown=None, can=Level.STATISTICAL)
        assert cell_of(standing(OTHER_DTYPE, seen=ENOUGH)).text() == "token"
        assert Cell(shown=Level.STATISTICAL, can=Level.TOKEN).text() == "statistical (token)"
        assert Cell(shown=None, can=None).text() == "?"

    def test_the_table_holds_every_pair_once(self) -> None:
        token, only = Cell(shown=Level.TOKEN, can=Level.TOKEN), Cell(shown=None, can=Level.STATISTICAL)
        rows = table(["a", "b", "c"], {(0, 1): token, (0, 2): only, (1, 2): only})
        assert rows == ["   b      c", "a  token  (statistical)", "b         (statistical)"]

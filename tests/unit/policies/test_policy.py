"""A policy file means one thing, or is refused with its place and a way out."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from policies.errors import PolicyError
from policies.gates import KINDS, ErrorRate, TokenEquality, Ttft
from policies.policy import SHIPPED, Level, OnFail, Policy, load_policy, policy_of, shipped_text

KNOWN = ", ".join(KINDS)

GOOD = """
level: token
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 7}
  slow: {kind: ttft, source: live, maximum_ratio: 1.5}
"""


def test_a_policy_is_read_with_its_defaults():
    policy = load_policy(GOOD, "p.yaml")
    assert policy.level is Level.TOKEN
    assert policy.on_fail is OnFail.ROLLBACK
    assert policy.gates["token_equality"] == TokenEquality(minimum_pairs=7)
    assert policy.gates["slow"] == Ttft(name="slow", source="live", maximum_ratio=1.5)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_policy_loads_and_explains_itself(name):
    policy = load_policy(name)
    assert policy.name == name
    assert shipped_text(name).startswith("#")


def test_the_audit_policy_lets_any_fork_send_traffic_home():
    policy = load_policy("audit")
    assert policy.on_fail is OnFail.ROLLBACK
    assert isinstance(policy.gates["token_equality"], TokenEquality)
    assert {gate.source for gate in policy.gates.values() if isinstance(gate, ErrorRate)} == {
        "live",
        "shadow",
    }


def test_the_digest_is_of_the_meaning_not_of_the_writing():
    other = """
gates:
  slow: {maximum_ratio: 1.50, source: live, kind: ttft, quantile: 0.95}
  token_equality:
    minimum_pairs: 7   # a comment
on_fail: rollback
alpha: 5.0e-2
level: token
"""
    assert load_policy(GOOD, "a").digest == load_policy(other, "b").digest
    assert load_policy(GOOD, "a").digest.startswith("sha256:")
    assert len(load_policy(GOOD, "a").digest) == 71


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alpha: 0.05", "alpha: 0.051"),
        ("level: token", "level: statistical"),
        ("minimum_pairs: 7", "minimum_pairs: 8"),
        ("  slow:", "  slower:"),
        ("gates:", "on_fail: hold\ngates:"),
    ],
)
def test_any_change_of_meaning_changes_the_digest(old, new):
    assert load_policy(GOOD, "p").digest != load_policy(GOOD.replace(old, new), "p").digest


def test_a_policy_survives_its_own_serialisation():
    policy = load_policy(GOOD, "p")
    again = msgspec.json.decode(msgspec.json.encode(policy), type=Policy)
    assert again == policy
    assert again.digest == policy.digest


HEAD = "level: token\nalpha: 0.05\n"
REFUSED = [
    (
        "audti",
        (
            "policy 'audti': no shipped policy of that name, did you mean audit?; shipped are audit, "
            "open-answers, sampling, else give a file's path"
        ),
    ),
    (
        "level: token\nalpha: 0.0\ngates: {token_equality: {}}",
        "p: alpha: 0.0 is outside 0-1, both excluded; 0.05 is usual",
    ),
    (
        "level: token\nalpha: 1\ngates: {token_equality: {}}",
        "p: alpha: 1 is outside 0-1, both excluded; 0.05 is usual",
    ),
    (
        "level: token\nalpha: .nan\ngates: {token_equality: {}}",
        "p: alpha: nan is outside 0-1, both excluded; 0.05 is usual",
    ),
    (
        "level: token\nalpha: five\ngates: {token_equality: {}}",
        "p: alpha: 'five' is no number; give one between 0 and 1, such as 0.05",
    ),
    (
        "level: token\nalpha: true\ngates: {token_equality: {}}",
        "p: alpha: True is no number; give one between 0 and 1, such as 0.05",
    ),
    (
        "level: tokens\nalpha: 0.05\ngates: {token_equality: {}}",
        (
            "p: level: 'tokens' is unknown, did you mean token?; known are artifact, environment, "
            "token, statistical"
        ),
    ),
    (
        HEAD + "on_fail: rolback\ngates: {token_equality: {}}",
        "p: on_fail: 'rolback' is unknown, did you mean rollback?; known are rollback, hold",
    ),
    (
        HEAD + "gate: {}",
        "p: gate: unknown key, did you mean gates?; known are level, alpha, on_fail, gates, suites",
    ),
    ("alpha: 0.05\ngates: {token_equality: {}}", "p: level: missing; a policy needs level, alpha and gates"),
    (
        HEAD + "gates: {}",
        "p: gates: must name at least one gate; without one nothing can fail, and nothing can pass",
    ),
    (
        HEAD + "gates: [token_equality]",
        "p: gates: must name at least one gate; without one nothing can fail, and nothing can pass",
    ),
    (
        HEAD + "gates: {tokn_equality: {}}",
        (
            "p: gates.tokn_equality: unknown gate, did you mean token_equality?; known are "
            f"{KNOWN} (a gate of another name needs `kind`)"
        ),
    ),
    (
        HEAD + "gates: {mine: {kind: ttf}}",
        (f"p: gates.mine.kind: ttf: unknown gate, did you mean ttft?; known are {KNOWN}"),
    ),
    (
        HEAD + "gates: {token_equality: 5}",
        "p: gates.token_equality: 5 is no mapping of limits; write {} for the defaults",
    ),
    (
        HEAD + "gates: {token_equality: {minimum_pair: 5}}",
        (
            "p: gates.token_equality.minimum_pair: unknown key, did you mean minimum_pairs?; "
            "token_equality knows estimand, minimum_pairs, on_fail, scope"
        ),
    ),
    (
        HEAD + "gates: {token_equality: {minimum_pairs: 0}}",
        "p: gates.token_equality.minimum_pairs: 0 is under 1; no data is no pass",
    ),
    (
        HEAD + "gates: {token_equality: {name: x}}",
        (
            "p: gates.token_equality.name: unknown key; token_equality knows estimand, minimum_pairs, "
            "on_fail, scope"
        ),
    ),
    (
        HEAD + "gates: {token_equality: {on_fail: holt}}",
        "p: gates.token_equality.on_fail: 'holt' is unknown, did you mean hold?; known are rollback, hold",
    ),
    (
        HEAD + "gates: {error_rate: {source: live}}",
        "p: gates.error_rate.maximum or margin: give at least one, or the gate limits nothing",
    ),
    (
        HEAD + "gates: {error_rate: {source: live, maximum: lots}}",
        "p: gates.error_rate.maximum: expected `float | null`, got `str`",
    ),
    (
        HEAD + "gates: {error_rate: {source: live, maximum: 2}}",
        "p: gates.error_rate.maximum: 2.0 is outside 0-1 (a share of requests; 1 could never fail)",
    ),
    (
        HEAD + "gates: {error_rate: {source: live, maximum: .1, window_s: 0}}",
        "p: gates.error_rate.window_s: 0.0 is outside 1-604800 seconds",
    ),
    (
        HEAD + "gates: {error_rate: {source: dead, maximum: .1}}",
        "p: gates.error_rate.source: 'dead' is unknown; known are live, shadow",
    ),
    (
        HEAD + "gates: {ttft: {source: live}}",
        "p: gates.ttft.margin or maximum_s: give at least one (or maximum_ratio), or the gate limits nothing",
    ),
    (
        HEAD + "gates: {tpot: {source: live, maximum_s: 1}}",
        (
            "p: gates.tpot.source: unknown key; tpot knows estimand, quantile, margin, promotion_margin, "
            "threshold_s, freeze_n, block_s, maximum_n, maximum_s, maximum_ratio, minimum_requests, "
            "window_s, on_fail, scope"
        ),
    ),
    (
        HEAD + "gates: {ttft: {source: live, maximum_s: -1}}",
        "p: gates.ttft.maximum_s: -1.0 is not above 0",
    ),
    (
        HEAD + "gates: {ttft: {source: live, maximum_s: 1, quantile: 95}}",
        "p: gates.ttft.quantile: 95.0 is outside 0-1, both excluded",
    ),
    (
        HEAD + "level: token\n",
        'p, line 3: found duplicate key "level" with value "token" (original value: "token")',
    ),
    (
        HEAD + "gates: {token_equality: {on_fail: stop}}",
        "p: gates.token_equality.on_fail: 'stop' is unknown; known are rollback, hold",
    ),
    (
        HEAD + "gates: {rule_cases: {}}",
        "p: gates.rule_cases.suite: the policy has no suite 'starter'; add `suites: {starter: {}}`",
    ),
    (
        HEAD + "gates: {rule_cases: {suite: startr}}\nsuites: {starter: {}}",
        (
            "p: gates.rule_cases.suite: the policy has no suite 'startr', did you mean starter?; the "
            "policy has starter; add `suites: {startr: {file: PATH}}`"
        ),
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: {starter: {}}",
        (
            "p: suites.starter: no gate reads it, so it would be asked for nothing; name it in a gate or "
            "remove it"
        ),
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: {mine: {passes: 3}}",
        "p: suites.mine.file: missing; only the shipped suite 'starter' goes without, name a JSONL file",
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: {starter: {passes: 0}}",
        "p: suites.starter.passes: 0 is outside 1-100; 5 is usual",
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: {starter: {pases: 5}}",
        (
            "p: suites.starter.pases: unknown key, did you mean passes?; a suite knows file, sha256, passes, "
            "scorers, refusal_rules"
        ),
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: {starter: {sha256: abc}}",
        "p: suites.starter.sha256: 'abc' is not 64 lower-case hex digits, print them with `sha256sum FILE`",
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: {starter: {scorers: {tone: {python: tone.py}}}}",
        (
            "p: suites.starter.scorers.tone.python: 'tone.py' is not FILE.py:FUNCTION, such as "
            "'scorers/tone.py:score'"
        ),
    ),
    (
        HEAD + 'gates: {token_equality: {}}\nsuites: {starter: {scorers: {tone: "tone.py:score"}}}',
        ("p: suites.starter.scorers.tone: 'tone.py:score' is no mapping; write {python: \"tone.py:score\"}"),
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: {starter: {scorers: {tone: tone}}}",
        "p: suites.starter.scorers.tone: 'tone' is no mapping; write {python: \"FILE.py:FUNCTION\"}",
    ),
    (
        HEAD + 'gates: {rule_cases: {suite: m}}\nsuites: {m: {file: "a\\0b"}}',
        "p: suites.m.file: a NUL character is in no file's name",
    ),
    (
        HEAD + "gates: {token_equality: {}}\nsuites: [starter]",
        "p: suites: ['starter'] is no mapping of suites; write {starter: {}}",
    ),
    ("- level\n- alpha\n", "p: the file is a list; it must be a mapping with level, alpha and gates"),
    ("# nothing\n", "p: the file is empty; it must be a mapping with level, alpha and gates"),
    ("1: 2\n", "p: key 1 is no text; put it in quotes"),
    ("level: [token\n", "p, line 2: expected ',' or ']', but got '<stream end>'"),
    (
        "level: !!python/object:os.system x\n",
        (
            "p, line 1: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'"
        ),
    ),
    (
        "level: token\nalpha: 0.05\ngates: {token_equality: {scope: tenants}}",
        (
            "p: gates.token_equality.scope: 'tenants' is unknown, did you mean tenant?; known are rollout, "
            "tenant"
        ),
    ),
    (
        "level: token\nalpha: 0.05\nsuites: {starter: {}}\ngates: {rule_cases: {scope: tenant}}",
        "p: gates.rule_cases.scope: a suite's samples are no tenant's; leave scope out",
    ),
    (
        "level: token\nalpha: 0.05\ngates: {gpu_memory: {maximum_ratio: 1.1, scope: tenant}}",
        "p: gates.gpu_memory.scope: an engine's memory is no tenant's; leave scope out",
    ),
    (
        "level: token\nalpha: 0.05\ngates: {sample_ratio: {expected_percent: 5, scope: tenant}}",
        "p: gates.sample_ratio.scope: it counts the copies of everybody; leave scope out",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_bad_policy_is_refused_with_its_place_and_a_way_out(text, message):
    with pytest.raises(PolicyError) as caught:
        load_policy(text, "p")
    assert str(caught.value) == message


def bomb() -> str:
    """A list of lists of lists, nine times nine, in a few hundred characters."""
    levels = ["&a [lol,lol,lol,lol,lol,lol,lol,lol,lol]"]
    levels += [f"&{new} [{','.join(['*' + old] * 9)}]" for old, new in pairwise("abcdefghi")]
    return f"[{', '.join(levels)}]"


@pytest.mark.parametrize(
    "place",
    [
        "level: {}\nalpha: 0.05\ngates: {{token_equality: {{}}}}",
        "level: token\nalpha: {}\ngates: {{token_equality: {{}}}}",
        "level: token\nalpha: 0.05\non_fail: {}\ngates: {{token_equality: {{}}}}",
        "level: token\nalpha: 0.05\ngates: {{token_equality: {}}}",
        "level: token\nalpha: 0.05\ngates: {{token_equality: {{kind: {}}}}}",
        "level: token\nalpha: 0.05\ngates: {{ttft: {{source: {}}}}}",
        "level: token\nalpha: 0.05\nsuites: {}\ngates: {{token_equality: {{}}}}",
    ],
)
def test_aliases_of_aliases_are_refused_before_anything_reads_or_prints_them(place):
    with pytest.raises(PolicyError) as caught:
        load_policy(place.format(bomb()), "p")
    assert str(caught.value) == (
        "p: more than 100000 values once its aliases are written out; write out what is meant"
    )


def test_an_alias_of_what_it_stands_in_is_refused():
    with pytest.raises(PolicyError, match="which has no end; write the values out"):
        load_policy(HEAD + "gates: {token_equality: &a {on_fail: *a}}", "p")


def test_aliases_and_merges_of_an_honest_size_are_taken():
    text = HEAD + "gates: {token_equality: &t {minimum_pairs: 7}, again: {<<: *t, kind: token_equality}}"
    assert load_policy(text, "p").gates["again"] == TokenEquality(name="again", minimum_pairs=7)


@pytest.mark.parametrize("kind", ["[1]", "{a: 1}", "~", "1"])
def test_a_kind_that_is_no_text_is_an_unknown_gate(kind):
    with pytest.raises(PolicyError, match=r"^p: gates\.x\.kind: .*: unknown gate; known are rule_cases"):
        load_policy(HEAD + f"gates: {{x: {{kind: {kind}}}}}", "p")


@pytest.mark.parametrize("name", ["1", '""', '"a b"', '"a\\nb"', '"\\e[31m"', '"\\ud800"', "[a]", "x" * 64])
@pytest.mark.parametrize("section", ["gates: {{? {} : {{kind: token_equality}}}}", "suites: {{? {} : {{}}}}"])
def test_names_stand_in_metrics_and_logs_and_are_plain(name, section):
    head = HEAD if section.startswith("gates") else HEAD + "gates: {token_equality: {}}\n"
    with pytest.raises(PolicyError, match="is not 1-63 letters, digits"):
        load_policy(head + section.format(name), "p")


def test_what_is_wrong_is_quoted_in_a_line_whatever_its_size():
    with pytest.raises(PolicyError) as caught:
        load_policy(HEAD + f"gates: {{token_equality: {{on_fail: {'x' * 100_000}}}}}", "p")
    assert len(str(caught.value)) < 300
    with pytest.raises(PolicyError) as caught:
        load_policy(HEAD + "gates: " + "[" * 100_000, "p")
    assert str(caught.value) == "p: no YAML: brackets in brackets without end; correct the file"


def test_a_decoded_mapping_is_taken_as_well():
    policy = policy_of({"level": "token", "alpha": 0.1, "gates": {"token_equality": None}}, "inline")
    assert policy.gates["token_equality"] == TokenEquality()


@pytest.mark.parametrize("kind", KINDS)
def test_every_gate_names_what_it_estimates(kind):
    assert "estimand" in KINDS[kind].__struct_fields__


WITH_SUITE = HEAD + "gates: {rule_cases: {}}\nsuites: {starter: {passes: 6}}"


def test_a_policy_has_a_digest_once_its_suites_are_known_and_it_is_of_what_they_hold():
    policy = load_policy(WITH_SUITE, "p")
    with pytest.raises(PolicyError, match=r"p: suites\.starter: is not loaded"):
        _ = policy.digest
    one, other = (policy.with_suites({"starter": f"sha256:{digit * 64}"}) for digit in "01")
    assert one.digest != other.digest
    again = load_policy(WITH_SUITE.replace("passes: 6", "passes: 7"), "p").with_suites(one.suite_digests)
    assert again.digest != one.digest
    pinned = WITH_SUITE.replace("passes: 6", f"passes: 6, sha256: {'a' * 64}")
    assert load_policy(pinned, "p").with_suites(one.suite_digests).digest == one.digest


def test_digests_of_exactly_its_suites_are_taken():
    policy = load_policy(WITH_SUITE, "p")
    with pytest.raises(PolicyError, match="digests of none were given for starter"):
        policy.with_suites({})


def test_a_gate_may_say_for_itself_what_its_failure_does():
    policy = load_policy(HEAD + "gates: {token_equality: {on_fail: hold}, tpot: {maximum_s: 1}}", "p")
    assert policy.on_fail_of("token_equality") is OnFail.HOLD
    assert policy.on_fail_of("tpot") is OnFail.ROLLBACK
    plain = load_policy(HEAD + "gates: {token_equality: {}, tpot: {maximum_s: 1}}", "p")
    said = load_policy(HEAD + "gates: {token_equality: {on_fail: rollback}, tpot: {maximum_s: 1}}", "p")
    assert policy.digest != plain.digest == said.digest


def test_a_gates_scope_is_part_of_what_a_policy_means():
    text = "level: token\nalpha: 0.05\ngates: {token_equality: {SCOPE}, fork_hazard: {}}"
    together = load_policy(text.replace("SCOPE", "scope: rollout"), "p")
    apart = load_policy(text.replace("SCOPE", "scope: tenant"), "p")
    assert (together.tenant_gates, apart.tenant_gates) == ((), ("token_equality",))
    assert together.digest == load_policy(text.replace("SCOPE", ""), "p").digest != apart.digest

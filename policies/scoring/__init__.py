"""Scorers: what an answer is worth, as pure functions of its text.

=================  ==================================================================================
``text``           exact texts, regular expressions
``numbers``        the last number in an answer
``json_values``    JSON alone or in a fence, against a schema; nothing is ever fetched
``refusal``        did it refuse: rules as data, in several languages
``score``          one answer, all the questions that its sample asks
=================  ==================================================================================

They run on what a model wrote and on patterns that users wrote, either of which may take long: whoever calls
them does so in a process of its own, with a time limit.
"""

from policies.scoring.errors import RefusalError, ScoringError
from policies.scoring.json_values import fenced, json_of, matches_schema
from policies.scoring.numbers import is_number, last_number
from policies.scoring.refusal import LanguageRules, RefusalRules, parse_refusal_rules, shipped_refusal_rules
from policies.scoring.score import Call, Judged, questions_of, score, score_answer
from policies.scoring.text import has_match, is_one_of

__all__ = [
    "Call",
    "Judged",
    "LanguageRules",
    "RefusalError",
    "RefusalRules",
    "ScoringError",
    "fenced",
    "has_match",
    "is_number",
    "is_one_of",
    "json_of",
    "last_number",
    "matches_schema",
    "parse_refusal_rules",
    "questions_of",
    "score",
    "score_answer",
    "shipped_refusal_rules",
]

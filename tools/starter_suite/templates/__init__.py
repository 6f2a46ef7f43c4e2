"""All templates, in the order in which the suite lists them.

``fmt: off`` stands in these modules because lists of words read better filled than one a line.
"""

from __future__ import annotations

from tools.starter_suite.template import Template
from tools.starter_suite.templates import (
    chinese_answers,
    chinese_writing,
    code_reading,
    code_writing,
    long_prose,
    long_records,
    low_margin,
    near_stop,
    short_answers,
    short_formats,
    structured_extract,
    structured_make,
)

TEMPLATES: tuple[Template, ...] = (
    *short_answers.TEMPLATES,
    *short_formats.TEMPLATES,
    *long_records.TEMPLATES,
    *long_prose.TEMPLATES,
    *chinese_answers.TEMPLATES,
    *chinese_writing.TEMPLATES,
    *code_reading.TEMPLATES,
    *code_writing.TEMPLATES,
    *structured_extract.TEMPLATES,
    *structured_make.TEMPLATES,
    *near_stop.TEMPLATES,
    *low_margin.TEMPLATES,
)

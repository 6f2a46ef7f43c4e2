"""Sample suites: frozen questions, asked of both arms at the start of each stage. Pure.

A suite is JSON Lines, one :class:`~policies.suites.sample.Sample` a line, frozen by the SHA-256 of its
bytes. It is asked in several passes an arm; what is averaged inside a sample is run-to-run noise, so that an
interval decides about *this* set of samples and nothing wider (the gates' estimand ``suite``).

============  ====================================================================
``sample``    one line: what is asked, and what its answer proves
``checks``    what types cannot say: ranges, patterns, schemas
``parse``     bytes → suite; every problem with its line, all at once
``suite``     the samples and their digest; the suites that come with the package
============  ====================================================================
"""

from policies.suites.errors import SuiteError
from policies.suites.parse import digest_of, parse_suite, sample_schema
from policies.suites.sample import Check, Exact, JsonSchema, Message, Numeric, PythonCall, Regex, Sample
from policies.suites.suite import Suite, Summary, shipped

__all__ = [
    "Check",
    "Exact",
    "JsonSchema",
    "Message",
    "Numeric",
    "PythonCall",
    "Regex",
    "Sample",
    "Suite",
    "SuiteError",
    "Summary",
    "digest_of",
    "parse_suite",
    "sample_schema",
    "shipped",
]

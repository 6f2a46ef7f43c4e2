"""The files that a policy's suites are made of: samples, a user's scorers, refusal rules. Read once, hashed.

A policy says only where they lie; ``policies`` reads no files. What is read here goes to the judge as it was
read, so that a file edited meanwhile changes nothing, and its digest goes into the policy's.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import msgspec

from policies.scoring import RefusalError, RefusalRules, parse_refusal_rules, shipped_refusal_rules
from policies.suite_section import ScorerSection, SuiteSection
from policies.suites import Suite, SuiteError, parse_suite, shipped

MOST_SCORER_BYTES = 1_048_576
MOST_SUITE_BYTES = 64 * 2**20


class ScorerSource(msgspec.Struct, frozen=True, kw_only=True):
    """A user's scorer as it was read."""

    where: str
    """Its file, for messages and tracebacks."""
    function: str
    timeout_s: float
    code: str

    @property
    def digest(self) -> str:
        """``sha256:`` and the hex SHA-256 of the file."""
        return "sha256:" + hashlib.sha256(self.code.encode()).hexdigest()


class SuiteSource(msgspec.Struct, frozen=True, kw_only=True):
    """A suite and all that scores it, as read."""

    name: str
    where: str
    """Its file, or that it is the shipped one."""
    content: bytes
    passes: int
    scorers: dict[str, ScorerSource] = {}
    refusal_where: str = ""
    refusal_content: bytes | None = None
    """None for the shipped rules."""


class LoadedSuite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite that can be asked and scored."""

    suite: Suite
    digest: str
    """Of everything that its scores depend on: samples, scorers, refusal rules. What the policy's digest
    rests on, and what :attr:`comparator.comparison.SampleRef.digest` says."""
    source: SuiteSource

    @property
    def name(self) -> str:
        """Its key in the policy."""
        return self.suite.name

    @property
    def passes(self) -> int:
        """How often every sample is asked of each arm."""
        return self.source.passes

    @property
    def asks(self) -> int:
        """Comparisons that make a complete suite."""
        return len(self.suite.samples) * self.passes


def read_suite(name: str, section: SuiteSection, base: Path) -> tuple[SuiteSource | None, list[str]]:
    """What a suite's section names, from the disk.

    Args:
        base: directory of the policy file, which relative paths start from.

    Returns:
        The source, or None and every problem, each with its place in the policy or in the suite's file.
    """
    problems: list[str] = []
    at = f"suites.{name}"
    scorers = {}
    for key, scorer in section.scorers.items():
        read = _read_scorer(f"{at}.scorers.{key}.python", scorer, base, problems)
        if read is not None:
            scorers[key] = read
    refusal_content = None
    if section.refusal_rules is not None:
        file = base / section.refusal_rules
        refusal_content = _bytes(f"{at}.refusal_rules", file, MOST_SCORER_BYTES, problems)
        if refusal_content is not None:
            try:
                parse_refusal_rules(refusal_content, section.refusal_rules)
            except RefusalError as error:
                problems += error.problems
    where = section.file if section.file is not None else f"the shipped suite {name!r}"
    content = _content(at, name, section, base, problems)
    if content is not None:
        try:
            parse_suite(content, where, name, section.scorers)
        except SuiteError as error:
            problems += error.problems
    if problems or content is None:
        return None, problems
    return SuiteSource(
        name=name,
        where=where,
        content=content,
        passes=section.passes,
        scorers=scorers,
        refusal_where=section.refusal_rules or "",
        refusal_content=refusal_content,
    ), []


def load_suite(source: SuiteSource) -> LoadedSuite:
    """Samples and rules out of what was read.

    Raises:
        SuiteError, RefusalError: as :func:`read_suite` tells; never for a source that it returned.
    """
    suite = parse_suite(source.content, source.where, source.name, source.scorers)
    return LoadedSuite(suite=suite, digest=_digest(suite, source), source=source)


def refusal_rules_of(source: SuiteSource) -> RefusalRules:
    """The suite's own rules, else the shipped ones. Raises RefusalError; never for a source that was read."""
    if source.refusal_content is None:
        return shipped_refusal_rules()
    return parse_refusal_rules(source.refusal_content, source.refusal_where)


def _digest(suite: Suite, source: SuiteSource) -> str:
    whole = {
        "samples": suite.digest,
        "scorers": {name: scorer.digest for name, scorer in source.scorers.items()},
        "refusal": refusal_rules_of(source).digest,
    }
    return "sha256:" + hashlib.sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()


def _content(at: str, name: str, section: SuiteSection, base: Path, problems: list[str]) -> bytes | None:
    if section.file is None:
        try:
            content: bytes | None = shipped(name)
        except SuiteError as error:
            problems += error.problems
            return None
    else:
        content = _bytes(f"{at}.file", base / section.file, MOST_SUITE_BYTES, problems)
    if content is not None and section.sha256 is not None:
        found = hashlib.sha256(content).hexdigest()
        if found != section.sha256:
            what = section.file if section.file is not None else f"the shipped suite {name!r}"
            problems.append(
                f"{at}.sha256: {what} is {found}, not the {section.sha256} that is asked for: it was edited, "
                "or another file is named"
            )
            return None
    return content


def _read_scorer(at: str, section: ScorerSection, base: Path, problems: list[str]) -> ScorerSource | None:
    file = base / section.path
    raw = _bytes(at, file, MOST_SCORER_BYTES, problems)
    if raw is None:
        return None
    try:
        code = raw.decode("utf-8")
        tree = ast.parse(code, section.path)
    except UnicodeDecodeError as error:
        problems.append(f"{at}: {section.path}: byte {error.start + 1} is no UTF-8; save the file as UTF-8")
        return None
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL byte
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        problems.append(f"{at}: {section.path}{line}: no Python: {said}; correct it")
        return None
    defined = _defined(tree)
    if section.function not in defined:
        known = f"it defines {', '.join(sorted(defined))}" if defined else "it defines none"
        problems.append(
            f"{at}: {section.path} has no function {section.function!r} at its top level; {known}"
        )
        return None
    return ScorerSource(where=str(file), function=section.function, timeout_s=section.timeout_s, code=code)


def _defined(tree: ast.Module) -> set[str]:
    """Names that a file gives to something at its top level: functions, and what is assigned or imported."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _bytes(at: str, file: Path, most: int, problems: list[str]) -> bytes | None:
    try:
        with file.open("rb") as opened:
            content = opened.read(most + 1)
    except FileNotFoundError:
        problems.append(f"{at}: no such file: {str(file)!r}")
        return None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        said = getattr(error, "strerror", None) or error
        problems.append(f"{at}: {str(file)!r} cannot be read: {said}")
        return None
    if len(content) > most:
        problems.append(f"{at}: {str(file)!r} has more than {most} bytes, the most that is read")
        return None
    return content

"""``forkgate compare``: which levels environments can reach, which they have shown, what is in the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, ConfigFile, Json, evidence_keys, read_config
from forkgate.cli.output import data, data_json, leave

if TYPE_CHECKING:
    from collections.abc import Callable

    from comparator.evidence import Keyring
    from engines.identity.levels import Side
    from forkgate.levels.sources import Evidence, Pool
    from forkgate.levels.standing import Limits, Standing
    from policies.policy import Level, Policy


def compare(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B ...",
            help="Each a folder with its records, ENV.json,ARTIFACT.json, an engine's URL, or a pool of "
            "--config. "
            "None: the two of the bundle given as --evidence. More than two: a matrix of all pairs.",
            show_default=False,
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            "--evidence",
            metavar="FILE",
            help="What `forkgate evidence export` wrote, or STATE_DIR/evidence.db.",
        ),
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option(
            "--rollout", metavar="NAME", help="Of --evidence: only its comparisons, and its verdicts."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="POLICY",
            help="Let this policy's gates judge the evidence; else stored verdicts count.",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="Answer for this one: artifact, environment, token or statistical.",
        ),
    ] = None,
    vouch: Annotated[
        list[str] | None,
        typer.Option(
            "--vouch",
            metavar="NAME",
            help="You know this unknown thing to be equal (a field, * for any part of it); `answers`: you "
            "know who gave those that no engine signed. May be given several times.",
        ),
    ] = None,
    forks_at_most: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=1e-6, max=0.5, help="Token level: share of prompts that may still fork."
        ),
    ] = 0.003,
    differing_at_most: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=1e-6, max=0.5, help="Statistical level, by the same bound: share of answers."
        ),
    ] = 0.005,
    alpha: Annotated[
        float, typer.Option(metavar="ALPHA", min=1e-9, max=0.4, help="1 - confidence of these bounds.")
    ] = 0.05,
    key_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="A key that --evidence is sealed with; those of --config are known.",
        ),
    ] = None,
    config: ConfigFile = DEFAULT_FILE,
    as_json: Json = False,
) -> None:
    """Say which of the four levels environments can reach, which they have shown, and what stands in the way.

    Records say what can be; only evidence shows tokens and statistics. What nobody knows counts as nothing.

    Exit status with --level: 0 it is shown; 1 it cannot be reached; 3 neither is known. Without: 0. 2 usage;
    4 a record or the evidence could not be read, or an engine does not answer.
    """
    from forkgate.levels.standing import Limits

    asked = _level(level)
    limits = Limits(forks_at_most=forks_at_most, differing_at_most=differing_at_most, alpha=alpha)
    asking = _Asking(
        names=tuple(sides or ()),
        evidence=evidence,
        rollout=rollout,
        policy=policy,
        vouch=tuple(vouch or ()),
        limits=limits,
        config=config,
        key_files=tuple(key_file or ()),
    )
    found = asking.answers()
    if len(found) == 1:
        _one(found[0], asked, as_json)
    else:
        _matrix(found, asked, as_json)


class _Asking:
    """What was typed, on its way to answers."""

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        evidence: Path | None,
        rollout: str | None,
        policy: str | None,
        vouch: tuple[str, ...],
        limits: Limits,
        config: Path,
        key_files: tuple[Path, ...],
    ) -> None:
        if len(names) == 1 or (not names and evidence is None):
            leave(Exit.USAGE, "give two environments, A and B, or --evidence with a bundle that brings both")
        if evidence is None and (policy is not None or rollout is not None):
            option = "--policy" if policy is not None else "--rollout"
            leave(Exit.USAGE, f"{option}: of which evidence? give --evidence too")
        self._names = names
        self._evidence = evidence
        self._rollout = rollout
        self._policy = self._read_policy(policy)
        self._vouch = vouch
        self._limits = limits
        self._config = config
        self._key_files = key_files

    def answers(self) -> list[Standing]:
        """One standing a pair, the first with each other one first."""
        import contextlib

        from comparator.evidence import EvidenceError, EvidenceForeign, EvidenceUnavailable
        from comparator.evidence.export import ExportLineError
        from engines.identity.collect_http import SilentEngine
        from engines.identity.trouble import ArtifactError, UnreadableFiles
        from forkgate.levels.gates import BadVerdicts
        from forkgate.levels.pairs import standings
        from forkgate.levels.sources import BadSource, Evidence

        try:
            with contextlib.ExitStack() as stack:
                evidence = None
                if self._evidence is not None:
                    opened = Evidence(self._evidence, self._rollout, self._keys)
                    evidence = stack.enter_context(opened)
                sides = self._sides(evidence)
                return standings(sides, evidence, policy=self._policy, vouch=self._vouch, limits=self._limits)
        except (UnreadableFiles, SilentEngine) as error:
            leave(Exit.UNMEASURED, str(error))
        except (ArtifactError, BadSource, EvidenceUnavailable, EvidenceForeign) as error:
            leave(Exit.USAGE, str(error))
        except (ExportLineError, BadVerdicts) as error:
            leave(Exit.USAGE, f"--evidence {self._evidence}: {error}")
        except (EvidenceError, OSError) as error:
            leave(Exit.UNMEASURED, str(error))

    def _sides(self, evidence: Evidence | None) -> list[Side]:
        from forkgate.levels.sources import side_of

        if not self._names:
            assert evidence is not None  # checked when it was typed
            return [evidence.side("baseline"), evidence.side("candidate")]
        return [
            side_of(text, name, self._pools())
            for text, name in zip(self._names, _short(self._names), strict=True)
        ]

    def _pools(self) -> Callable[[str], Pool]:
        from forkgate.levels.sources import BadSource, Pool

        def find(name: str) -> Pool:
            if not self._config.exists():
                raise BadSource(
                    f"{name}: no such file or folder, and no {self._config} whose pool it could be: "
                    "give --config"
                )
            for pool in read_config(self._config).pools:
                if pool.name == name:
                    key = pool.engine.credential_file
                    return Pool(
                        name=name,
                        endpoints=pool.endpoints,
                        key=None if key is None else Path(key).read_text(encoding="utf-8").strip(),
                    )
            raise BadSource(f"{name}: no such file or folder, and no pool of {self._config}")

        return find

    def _keys(self) -> Keyring:
        return evidence_keys(self._config if self._config.exists() else None, self._key_files)

    @staticmethod
    def _read_policy(name: str | None) -> Policy | None:
        from forkgate.cli.policy import read

        return None if name is None else read(name).policy


def _level(text: str | None) -> Level | None:
    from policies.policy import Level

    if text is None:
        return None
    try:
        return Level(text)
    except ValueError:
        leave(Exit.USAGE, f"--level: {text!r} is not one of {', '.join(Level)}")


def _short(texts: tuple[str, ...]) -> list[str]:
    """What to call each: the last part of its path, or all of it where that would name two."""
    short = [text if "://" in text else Path(text.split(",")[0]).stem or text for text in texts]
    if len(set(short)) == len(short):
        return short
    return [f"{text} ({'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[place % 26]})" for place, text in enumerate(texts)]


def _one(standing: Standing, asked: Level | None, as_json: bool) -> None:
    from forkgate.levels.standing import to_json
    from forkgate.levels.words import lines

    if as_json:
        data_json({"asked": asked, **to_json(standing)})
    else:
        data("\n".join(lines(standing, asked)))
    leave(_exit([standing], asked))


def _matrix(found: list[Standing], asked: Level | None, as_json: bool) -> None:
    import itertools

    from forkgate.levels.matrix import cell_of, table
    from forkgate.levels.standing import to_json
    from forkgate.levels.words import headline

    names = list(dict.fromkeys([found[0].a.name, *(one.b.name for one in found)]))
    if as_json:
        pairs: list[dict[str, Any]] = [
            {"shown": cell_of(one).shown, "can": cell_of(one).can, **to_json(one)} for one in found
        ]
        data_json({"asked": asked, "environments": names, "pairs": pairs})
    else:
        places = itertools.combinations(range(len(names)), 2)
        cells = {place: cell_of(one) for place, one in zip(places, found, strict=True)}
        told = [*table(names, cells), "", "the strictest level shown (in brackets: that can be reached)", ""]
        data("\n".join([*told, *(headline(one, asked) for one in found)]))
    leave(_exit(found, asked))


def _exit(found: list[Standing], asked: Level | None) -> Exit:
    from engines.identity.levels import Can

    if asked is None:
        return Exit.PASS
    answers = [standing.answers[asked] for standing in found]
    if all(one.shown for one in answers):
        return Exit.PASS
    if any(one.can is Can.NO and not one.shown for one in answers):
        return Exit.FAIL
    return Exit.INCONCLUSIVE

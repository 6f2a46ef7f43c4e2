"""``forkgate verdict recompute``."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import Json, evidence_keys
from forkgate.cli.output import data, data_json, leave, say

if TYPE_CHECKING:
    from forkgate.judge.recompute import Checked, Recomputed

app = typer.Typer(no_args_is_help=True, help="What gates said: compute it again.")

SAID = {True: "equal", False: "DIFFERS", None: "not recomputed"}


@app.callback()
def group() -> None:
    """What gates said: compute it again."""


@app.command("recompute", short_help="Compute stored verdicts again: are they equal?")
def recompute_(
    evidence: Annotated[
        Path,
        typer.Option(
            "--evidence", metavar="FILE", help="The evidence store: STATE_DIR/evidence.db, or a copy of it."
        ),
    ],
    rollout: Annotated[str, typer.Option("--rollout", metavar="NAME", help="The rollout's name.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Configuration whose evidence.encryption reads sealed evidence.",
        ),
    ] = None,
    key_file: Annotated[
        list[Path] | None,
        typer.Option("--key-file", metavar="FILE", help="A key that evidence is sealed with; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute every stored verdict again from stored evidence: is it the same, to the last bit?

    Reads the file alone: no judge is needed, and one that writes to it is not disturbed.

    Exit status: 0 all equal; 1 one differs, or stored evidence contradicts itself; 2 no such file or rollout;
    3 there is no verdict; 4 some could not be computed again, or the file cannot be read.
    """
    from comparator.evidence import EvidenceError, EvidenceForeign, EvidenceReader, EvidenceUnavailable
    from forkgate.judge.recompute import recompute

    try:
        with EvidenceReader(evidence, evidence_keys(config, key_file or ())) as reader:
            known = reader.rollouts()
            if rollout not in known:
                names = ", ".join(known) if known else "none at all"
                leave(Exit.USAGE, f"--rollout: {evidence} knows no rollout {rollout!r}; it knows {names}")
            done = recompute(reader, rollout)
    except (EvidenceUnavailable, EvidenceForeign) as error:
        leave(Exit.USAGE, f"--evidence: {error}")
    except EvidenceError as error:
        leave(Exit.UNMEASURED, str(error))
    if as_json:
        data_json(_plain(done))
    else:
        _show(done)
    leave(_exit(done))


def _exit(done: Recomputed) -> Exit:
    if done.differing or done.problems:
        return Exit.FAIL
    if not done.verdicts:
        return Exit.INCONCLUSIVE
    return Exit.UNMEASURED if done.unknown else Exit.PASS


def _show(done: Recomputed) -> None:
    for one in done.verdicts:
        data(_line(one))
    for problem in done.problems:
        data(f"PROBLEM  {problem}")
    for told in done.told:
        say(told)
    if not done.verdicts:
        say(f"rollout {done.rollout} has no stored verdict")
        return
    counts = [f"{done.equal} equal"]
    if done.differing:
        counts.append(f"{done.differing} differ")
    if done.unknown:
        counts.append(f"{done.unknown} could not be computed again")
    say(f"{', '.join(counts)}; {done.events} events with {done.evidence} items of evidence replayed")


def _line(one: Checked) -> str:
    at = datetime.datetime.fromtimestamp(one.unix_s, tz=datetime.UTC)
    why = f": {one.why}" if one.why else ""
    return (
        f"{at:%Y-%m-%dT%H:%M:%SZ}  evidence {one.evidence}  {one.gate}  {one.answer}  {SAID[one.equal]}{why}"
    )


def _plain(done: Recomputed) -> dict[str, Any]:
    import msgspec

    from comparator.evidence.export import json_safe

    plain: dict[str, Any] = json_safe(msgspec.to_builtins(done))
    return {**plain, "equal": done.equal, "differing": done.differing, "not_recomputed": done.unknown}

"""``forkgate gate evaluate``: a policy's gates over given comparisons, without a judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import Json
from forkgate.cli.output import data, data_json, leave
from forkgate.cli.policy import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from comparator.comparison import Comparison
    from policies.evaluate import Path as GatePath
    from policies.policy import Policy
    from policies.verdict import Verdict

app = typer.Typer(no_args_is_help=True, help="Gates, over evidence at hand.")

_SHOWN = 12
"""Points of a gate's path that a person is shown; --json has them all."""


@app.callback()
def group() -> None:
    """Keep `gate` a group while it has one command."""


@app.command("evaluate", short_help="Run a policy's gates over a file of comparisons.")
def evaluate(
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="POLICY", help="A shipped policy's name, or a file.")
    ],
    pairs: Annotated[
        Path,
        typer.Option(
            "--pairs", metavar="FILE", help="JSON Lines as `forkgate evidence export` writes; - for stdin."
        ),
    ],
    gate: Annotated[
        list[str] | None,
        typer.Option("--gate", metavar="NAME", help="Only this gate; may be given several times."),
    ] = None,
    tenants: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Tenants that the rollout moves; gates kept by tenant share alpha."
        ),
    ] = 1,
    look: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Which judged stage or step it is; a suite's gates have less each time."
        ),
    ] = 1,
    as_json: Json = False,
) -> None:
    """Fold comparisons, in the order of the file, through each gate and print its path and its verdict.

    The levels are those of a rollout with this policy: alpha split over its gates; for gates about
    a suite over looks, and for gates kept by tenant over tenants.

    Exit status: 0 every gate passes; 1 one fails; 3 none fails, one is inconclusive; 4 none fails, one could
    not measure; 2 the policy or the file is wrong.
    """
    from comparator.evidence.export import ExportLineError, read_comparisons
    from policies.evaluate import evaluate as walk
    from policies.gates.by_token import by_token
    from policies.levels import levels_of

    chosen = read(policy).policy
    gates: dict[str, Any] = dict(chosen.gates)
    for name in gate or ():
        if name not in gates:
            leave(Exit.USAGE, f"--gate {name}: the policy has no such gate; it has {', '.join(gates)}")
    # Alpha is split over all gates that may roll back, whichever of them are looked at here.
    alphas = levels_of(chosen.alpha, gates, look=look, tenants=tenants, kept=chosen.tenant_gates)
    if gate:
        gates = {name: gates[name] for name in gates if name in gate}
    try:
        with _lines(pairs) as lines:
            counted = _Counted(read_comparisons(lines, on_hashed=_no_hashes_for(by_token(gates))))
            paths = walk(gates, counted, alphas)
    except ExportLineError as error:
        leave(Exit.USAGE, f"{pairs}: {error}")
    except OSError as error:
        leave(Exit.USAGE, f"{pairs}: cannot be read: {error.strerror or error}")
    if as_json:
        data_json(_json(chosen, counted.n, paths))
    else:
        data(_text(counted.n, paths))
    raise typer.Exit(exit_of(path.verdict for path in paths))


def _no_hashes_for(gates: tuple[str, ...]) -> Callable[[int, Comparison], None]:
    """Hashes must not pass for tokens with gates that look for one token in many captures."""
    from comparator.evidence.export import ExportLineError
    from policies.gates import drawn

    def refuse(line: int, comparison: Comparison) -> None:
        if gates and drawn.reads(comparison):
            raise ExportLineError(
                line,
                f"kept as hashes (evidence.store), and {' and '.join(gates)} read token IDs: name other "
                "gates with --gate",
            )

    return refuse


def exit_of(verdicts: Iterable[Verdict]) -> Exit:
    """The worst of several verdicts as an exit status."""
    from policies.verdict import Answer

    answers = {verdict.answer for verdict in verdicts}
    for answer, status in (
        (Answer.FAIL, Exit.FAIL),
        (Answer.ERROR, Exit.UNMEASURED),
        (Answer.INCONCLUSIVE, Exit.INCONCLUSIVE),
    ):
        if answer in answers:
            return status
    return Exit.PASS


class _Counted:
    """Comparisons, counted as they go by."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        self._comparisons = comparisons
        self.n = 0

    def __iter__(self) -> Any:
        for comparison in self._comparisons:
            self.n += 1
            yield comparison


def _lines(file: Path) -> Any:
    import contextlib
    import sys

    return contextlib.nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb")


def _json(policy: Policy, n: int, paths: tuple[GatePath, ...]) -> dict[str, Any]:
    import msgspec

    from comparator.evidence.export import json_safe

    return {
        "policy": policy.name,
        "policy_digest": policy.digest,
        "alpha": policy.alpha,
        "comparisons": n,
        "gates": [
            {
                "gate": path.gate,
                "kind": path.kind,
                "verdict": json_safe(msgspec.to_builtins(path.verdict)),
                "path": [
                    {
                        "comparison": point.index,
                        "capture_id": point.capture_id,
                        "answer": point.verdict.answer.value,
                        "n": point.verdict.n,
                        "value": json_safe(point.verdict.value),
                        "rollback_nats": json_safe(point.verdict.rollback_nats),
                        "promotion_nats": json_safe(point.verdict.promotion_nats),
                    }
                    for point in path.points
                ],
            }
            for path in paths
        ],
    }


def _text(n: int, paths: tuple[GatePath, ...]) -> str:
    lines = [f"{n} comparisons"]
    for path in paths:
        verdict = path.verdict
        lines.append(f"{path.gate}: {verdict.answer.value}, {verdict.reason}")
        shown = path.points if len(path.points) <= _SHOWN else _spread(path)
        for point in shown:
            lines.append(
                f"  after {point.index:>6}: {point.verdict.answer.value:<12} n {point.verdict.n:<6}"
                f" log E rollback {_nats(point.verdict.rollback_nats)}"
                f" promotion {_nats(point.verdict.promotion_nats)}"
            )
    return "\n".join(lines)


def _spread(path: GatePath) -> list[Any]:
    """Points evenly spread over the path, its ends and every change of answer among them."""
    points = path.points
    every = {round(k * (len(points) - 1) / (_SHOWN - 1)) for k in range(_SHOWN)}
    every |= {
        k for k in range(1, len(points)) if points[k].verdict.answer is not points[k - 1].verdict.answer
    }
    return [points[k] for k in sorted(every)]


def _nats(value: float | None) -> str:
    return f"{'-':>8}" if value is None else f"{value:>8.3f}"

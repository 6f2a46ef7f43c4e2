"""``forkgate policy lint|show|list``: what a policy can decide, before it meets any traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import Json, read_config
from forkgate.cli.output import complain, data, data_json, leave

if TYPE_CHECKING:
    from forkgate.config.policy import Frozen
    from policies.lint import Expected, Reach

app = typer.Typer(no_args_is_help=True, help="Policies: what they ask, and what they can decide.")

Name = Annotated[str, typer.Argument(metavar="POLICY", help="A shipped policy's name, or a file.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Name the policies that come with forkgate."""
    from policies.policy import SHIPPED

    if as_json:
        data_json(list(SHIPPED))
    else:
        data("\n".join(SHIPPED))


@app.command("show", short_help="Print a policy.")
def show(policy: Name, as_json: Json = False) -> None:
    """Print a policy: with its comments, or with --json what it means, every default spelled out.

    Exit status: 0; 2 there is no such policy, or it is wrong.
    """
    import msgspec

    from policies.policy import SHIPPED, shipped_text

    loaded = read(policy)
    if as_json:
        made = loaded.policy
        data_json(
            {"policy": made.name, "digest": made.digest, "meaning": msgspec.json.decode(made.canonical())}
        )
    else:
        data(shipped_text(policy) if policy in SHIPPED else Path(policy).read_text(encoding="utf-8"))


@app.command("lint", short_help="Say what each gate can and cannot decide.")
def lint(
    policy: Name,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Take percent, controls and canary tenants from this file's rollout.",
        ),
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option(
            "--rollout", metavar="NAME", help="Which rollout of --config; needed where there are several."
        ),
    ] = None,
    requests_per_day: Annotated[
        float,
        typer.Option("--requests-per-day", metavar="N", min=0, help="Live requests that may be mirrored."),
    ] = 100_000,
    canary_per_day: Annotated[
        float,
        typer.Option(
            "--canary-per-day", metavar="N", min=0, help="Live requests that the candidate answers."
        ),
    ] = 5_000,
    discordance: Annotated[
        float,
        typer.Option(
            "--discordance",
            metavar="SHARE",
            min=0,
            max=1,
            help="Share of scores that differ between two equal runs.",
        ),
    ] = 0.05,
    fork_share: Annotated[
        float,
        typer.Option(
            "--fork-share",
            metavar="SHARE",
            min=0,
            max=1,
            help="Share of answers that fork between two equal runs.",
        ),
    ] = 0.4,
    as_json: Json = False,
) -> None:
    """Say in plain words what each gate of POLICY can and cannot decide with the expected traffic.

    Figures are medians under the suppositions named; `python -m bench.statistics` shows the tests themselves.

    Exit status: 0 the policy can be used; 1 a gate's limits can never be decided, whatever comes; 2 the
    policy is wrong.
    """
    from policies.lint import lint as ask

    loaded = read(policy)
    expected, tenants, looks = _expected(
        loaded, config, rollout, requests_per_day, canary_per_day, discordance, fork_share
    )
    found = ask(loaded.policy, expected, tenants=tenants, looks=looks)
    if as_json:
        data_json(_json(loaded, expected, (tenants, looks), found))
    else:
        data(_text(loaded, tenants, looks, found))
    refused = [reach for reach in found if reach.refused is not None]
    for reach in refused:
        complain(f"{policy}: gates.{reach.gate}: {reach.refused}")
    raise typer.Exit(Exit.FAIL if refused else Exit.PASS)


def read(policy: str) -> Frozen:
    """A policy with its suites, or the end of the command with every problem named."""
    from forkgate.config.policy import frozen, read_policy

    source, problems = read_policy(policy)
    if source is None:
        for problem in problems:
            complain(problem)
        leave(Exit.USAGE)
    return frozen(source)


def _expected(
    loaded: Frozen,
    file: Path | None,
    rollout: str | None,
    requests_per_day: float,
    canary_per_day: float,
    discordance: float,
    fork_share: float,
) -> tuple[Expected, int, int]:
    from policies.levels import LOOKS
    from policies.lint import Expected, SuiteSize
    from policies.rollout import steps_of

    shadow: dict[str, float] = {}
    tenants, looks = 1, LOOKS
    if file is not None:
        whole = read_config(file)
        rollouts = {str(one.name): one for one in whole.rollouts}
        if rollout is None and len(rollouts) == 1:
            rollout = next(iter(rollouts))
        if rollout is None or rollout not in rollouts:
            leave(
                Exit.USAGE,
                f"--rollout {rollout or '(missing)'}: {file} has {', '.join(rollouts) or 'none'}; name one",
            )
        section = rollouts[rollout]
        shadow = {
            "percent": section.shadow.percent,
            "control_percent": section.shadow.control_percent,
            "timing_percent": section.shadow.timing_percent,
        }
        plan = steps_of(
            section.steps,
            rollout=section.name,
            configured=[tenant.name for tenant in whole.tenants],
        )
        tenants = max(1, len(plan[-1].tenants) if plan else 0)
        if plan:
            looks = len(plan) + (not section.shadow_stage.skip) + plan[-1].whole
    elif rollout is not None:
        leave(Exit.USAGE, "--rollout: needs --config, whose rollout it is")
    return (
        Expected(
            requests_per_day=requests_per_day,
            canary_per_day=canary_per_day,
            discordance=discordance,
            fork_share=fork_share,
            suites={name: SuiteSize.of(one.suite, one.passes) for name, one in loaded.suites.items()},
            **shadow,
        ),
        tenants,
        looks,
    )


def _some(number: int, what: str, several: str | None = None) -> str:
    return f"{number} {what if number == 1 else several or what + 's'}"


def _text(loaded: Frozen, tenants: int, looks: int, found: tuple[Reach, ...]) -> str:
    policy = loaded.policy
    spending = sum(reach.alpha is not None for reach in found)
    tested = (
        f"at most one rollout in {1 / policy.alpha:.0f} of equal environments is rolled back by a gate that "
        f"tests; split over {_some(spending, 'such gate')}"
    )
    if any(reach.alpha is not None and reach.estimand == "suite" for reach in found):
        tested += (
            f", a suite's over looks, of which {_some(looks, 'is', 'are')} expected and the last is told"
        )
    if policy.tenant_gates:
        tested += f", {', '.join(policy.tenant_gates)} over {_some(tenants, 'tenant')}"
    lines = [
        f"policy {policy.name}, level {policy.level.value}, {policy.digest[:19]}",
        f"alpha {policy.alpha:g}: {tested if spending else 'no gate of it tests, so nothing spends it'}",
    ]
    for reach in found:
        held = "" if reach.alpha is None else f", fails at {reach.alpha:.2g}"
        lines += ["", f"{reach.gate} ({reach.kind}, {reach.estimand}{held})"]
        if reach.refused is not None:
            lines.append(f"  ! {reach.refused}")
        lines += [f"  - {sentence}" for sentence in (*reach.says, *(need.sentence() for need in reach.needs))]
    return "\n".join(lines)


def _json(
    loaded: Frozen, expected: Expected, over: tuple[int, int], found: tuple[Reach, ...]
) -> dict[str, Any]:
    import msgspec

    from comparator.evidence.export import json_safe

    value: dict[str, Any] = json_safe(
        {
            "policy": loaded.policy.name,
            "policy_digest": loaded.policy.digest,
            "alpha": loaded.policy.alpha,
            "tenants": over[0],
            "looks": over[1],
            "expected": msgspec.to_builtins(expected),
            "gates": [
                {
                    **msgspec.to_builtins(reach),
                    "needs": [
                        {
                            "what": need.what,
                            "unit": need.unit,
                            "median": need.needed.median,
                            "p90": need.needed.p90,
                            "days": need.days,
                            "possible": need.possible,
                        }
                        for need in reach.needs
                    ],
                }
                for reach in found
            ],
        }
    )
    return value

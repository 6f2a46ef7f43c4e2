"""``forkgate status``: the sidecar at a glance, in words."""

from __future__ import annotations

import datetime
from typing import Any

from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, ConfigFile, Json, StateDir, door, named
from forkgate.cli.output import data, data_json, leave


def status(config: ConfigFile = DEFAULT_FILE, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Show edges, route table, engines and what they lack, the ledger, and every rollout.

    Exit status: 0; 1 when the ledger does not balance; 4 when no judge answers.
    """
    answer = door(config, state_dir).get("/v1/status")
    if as_json:
        data_json(answer)
    else:
        data("\n".join(describe(answer, named(config, state_dir))))
    if not answer["ledger"]["balanced"]:
        leave(Exit.FAIL)


def describe(answer: dict[str, Any], option: str = "") -> list[str]:
    """The whole status as lines of text. ``option`` is added to the commands it suggests."""
    lines = [
        f"forkgate {answer['version']}  sidecar {answer['sidecar']}  up {_span(answer['judge']['uptime_s'])}",
        f"listening on {', '.join(answer['listen']) or 'unknown (edges run elsewhere)'}",
        f"routes  epoch {answer['epoch']}, home {answer['home']}"
        + "".join(f", {tenant} → {pool}" for tenant, pool in sorted(answer["routes"].items())),
    ]
    lines += _edges(answer)
    for pool in answer["pools"]:
        lines += pool_lines(pool)
    lines += ["", *ledger_lines(answer["ledger"])]
    lines += evidence_lines(answer.get("evidence", {}))
    for rollout in answer["rollouts"]:
        lines += ["", *rollout_lines(rollout, option)]
    for trouble in answer["troubles"]:
        lines += ["", f"trouble: {trouble}"]
    return lines


def _edges(answer: dict[str, Any]) -> list[str]:
    edges = answer["edges"]
    lines = [f"edges   {sum(edge['connected'] for edge in edges)} connected"]
    for edge in edges:
        trouble = ""
        if not edge["connected"]:
            trouble = f"  NOT CONNECTED, last heard {_span(edge['heard_s'])} ago, epoch {edge['epoch']}"
        elif edge["epoch"] < answer["epoch"]:
            trouble = f"  BEHIND, epoch {edge['epoch']}"
        lines.append(f"  {edge['sidecar']}/{edge['worker']}  {edge['incarnation']}{trouble}")
    return lines


def pool_lines(pool: dict[str, Any]) -> list[str]:
    """One pool: each engine, what it honours and lacks, when it answered last."""
    lines = ["", f"pool {pool['name']}" + ("  (home)" if pool["home"] else "")]
    for endpoint in pool["endpoints"]:
        heard = (
            "" if endpoint["answered_s"] is None else f", last answered {_span(endpoint['answered_s'])} ago"
        )
        if endpoint["trouble"] is not None:
            lines.append(f"  {endpoint['url']}  {endpoint['engine']}: {endpoint['trouble']}{heard}")
            continue
        version = f" {endpoint['version']}" if endpoint["version"] else ""
        model = f", model {endpoint['model']}" if endpoint["model"] else ""
        depth = f"top-{endpoint['max_logprobs']} logprobs"
        lines.append(f"  {endpoint['url']}  {endpoint['engine']}{version}{model}, {depth}{heard}")
        digest = endpoint["environment"].get("value")
        if digest is not None:
            lines.append(f"    environment {digest}, told by its last {endpoint['environment_by']}")
        lines.append(f"    honours: {', '.join(endpoint['has']) or 'nothing that was asked for'}")
        lines += [f"    lacks {name}: {why}" for name, why in sorted(endpoint["missing"].items())]
    lines += old_pool_lines(pool.get("watch"))
    return lines


def old_pool_lines(watch: dict[str, Any] | None) -> list[str]:
    """Whether a pool that a rollout would go back to could take everything, and who answers there."""
    if watch is None:
        return []
    if watch["ready"]:
        lines = [f"  kept ready to go back to: {watch['reason']}"]
    else:
        since_s = max(0.0, watch["unix_s"] - watch["since_unix_s"])
        lines = [f"  NOT READY to go back to, for {_span(since_s)}: {watch['reason']}"]
    for one in watch["endpoints"]:
        told = [(name, one[name]) for name in ("environment", "driver", "image") if one[name] is not None]
        took = "no answer" if one["took_s"] is None else f"answered in {one['took_s']:.2f} s"
        who = "".join(f", {name} {value}" for name, value in told)
        lines.append(f"    {one['url']}  {took}{who}")
    return lines


def ledger_lines(ledger: dict[str, Any]) -> list[str]:
    """captured = compared + dropped + in flight, with the reasons."""
    dropped = sum(ledger["dropped"].values())
    verdict = "balances" if ledger["balanced"] else "DOES NOT BALANCE"
    total = f"compared {ledger['compared']} + dropped {dropped} + in flight {ledger['in_flight']}"
    lines = [f"ledger  captured {ledger['captured']} = {total}: {verdict}"]
    lines += [f"  dropped {reason}: {count}" for reason, count in sorted(ledger["dropped"].items()) if count]
    if ledger["live_records_lost"]:
        lines.append(f"  live records lost: {ledger['live_records_lost']}")
    return lines


def evidence_lines(evidence: dict[str, Any]) -> list[str]:
    """How full the store is, and who could read its file. Nothing where it could not be asked: a trouble says
    why."""
    if "used_bytes" not in evidence:
        return []
    key, others = evidence["sealed_with"], [*evidence["key_ids"]]
    at_rest = "NOT ENCRYPTED (evidence.encryption)" if key is None else f"sealed with key {key}"
    if evidence["kept"] == "hashes":
        at_rest += ", keyed hashes in the place of tokens"
    size = f"{evidence['used_bytes'] / 1e6:.1f} of {evidence['max_bytes'] / 1e6:.0f} MB"
    lines = [f"evidence  {evidence['pairs']} pairs, {evidence['forks']} forks, {size}; {at_rest}"]
    older = [one for one in others if one != key]
    if older:
        lines.append(f"  some of it needs key {', '.join(older)} still: forkgate evidence rekey")
    return lines


def pairs_line(rollout: dict[str, Any]) -> str:
    """Which of the pairs were compared, and what became of the others."""
    why = ", ".join(
        f"{reason.replace('_', ' ')} {count}"
        for reason, count in sorted(rollout["set_aside_reasons"].items())
    )
    return (
        f"pairs {rollout['pairs']}: {rollout['compared']} compared to the end or a fork, "
        f"{rollout['set_aside']} set aside{f' ({why})' if why else ''}, "
        f"{rollout['candidate_failed']} where the candidate failed"
    )


def load_line(load: dict[str, Any]) -> str:
    """What the shadow costs beside live traffic, since the judge started."""
    shadow, live = load["shadow_requests"], load["live_requests"]
    ratio = f" ({shadow / live:.1%})" if live else ""
    return (
        f"load since the judge started: {shadow} shadow requests over {live} live in these pools{ratio}, "
        f"{load['shadow_tokens']} shadow tokens"
    )


def tenant_lines(rollout: dict[str, Any]) -> list[str]:
    """Whose live traffic goes to the candidate now, and who was sent home; a hold alone moves nobody."""
    if rollout["home"] == rollout["candidate"]:
        return [f"  home is {rollout['candidate']}: everybody's live traffic goes there"]
    lines = []
    if rollout["on_candidate"]:
        lines.append(f"  live traffic on {rollout['candidate']}: {', '.join(rollout['on_candidate'])}")
    elif rollout["canary_tenants"]:
        lines.append(
            f"  live traffic goes home now; {rollout['candidate']} answers only what nobody at home does"
            if rollout["state"] == "rolled_back"
            else f"  live traffic goes home now, none of it to {rollout['candidate']}"
        )
    return lines


def sent_home_lines(rollout: dict[str, Any], option: str) -> list[str]:
    """Tenants that are home while their rollout goes on."""
    lines = []
    for one in rollout["tenants_home"]:
        lines.append(
            f"  SENT HOME {one['tenant']}{_at(one)}, by {one['who'] or one['gate']}: {one['reason']}"
        )
        if one["deciding_id"]:
            lines.append(f"    why: forkgate evidence show {one['deciding_id']}{option}")
        command = f"forkgate rollout lift {rollout['name']} --tenant {one['tenant']} --reason '...'{option}"
        lines.append(f"    lift it with: {command}")
    return lines


def _at(latched: dict[str, Any]) -> str:
    at = datetime.datetime.fromtimestamp(latched["unix_s"], tz=datetime.UTC)
    epoch = "" if latched["epoch"] is None else f" at epoch {latched['epoch']}"
    durable = "" if latched["durable"] else " (not durable yet)"
    return f"{epoch}, {at:%Y-%m-%d %H:%M:%S} UTC{durable}"


def rollout_lines(rollout: dict[str, Any], option: str = "") -> list[str]:
    """One rollout: where it stands, why, and what each gate says."""
    policy = rollout["policy"]
    lines = [
        f"rollout {rollout['name']}  {rollout['baseline']} → {rollout['candidate']}  {rollout['place']}",
        f"  policy {policy['name']} {policy['digest']}, level {policy['level']}, alpha {policy['alpha']:g}",
        f"  look {rollout['look']}",
        *tenant_lines(rollout),
    ]
    lines += [check_line(check) for check in rollout["checks"]]
    lines += [suite_line(suite) for suite in rollout["suites"]]
    lines.append(f"  {pairs_line(rollout)}, forks {rollout['forks']}")
    lines += forks_lines(rollout)
    shadow = rollout["shadow"]
    if shadow is not None:
        load = rollout["load"]
        spent = f"{shadow['spent']['today_tokens']} tokens today"
        waits = f", waits: {shadow['blocked']}" if shadow["blocked"] else ""
        lines.append(f"  shadow {shadow['running']} running, {shadow['queued']} queued, {spent}{waits}")
        lines.append(f"  {load_line(load)}")
        lines += drop_lines(rollout)
    hold = rollout["hold"]
    if hold is not None:
        lines.append(f"  HELD until somebody has looked ({hold['cause']}): {hold['reason']}")
        lines += [f"    {number}. {way}" for number, way in enumerate(hold["choice"], 1)]
        if hold["choice"]:
            lines.append("    each is a new rollout, of another name")
    paused = rollout["paused"]
    if paused is not None:
        lines.append(f"  PAUSED by {paused['who']}: {paused['why']}")
    ended = rollout["ended"]
    if ended is not None:
        lines.append(f"  ABORTED by {ended['who']}: {ended['why']}")
    latched = rollout["latched"]
    if latched is not None:
        by = latched["who"] or latched["gate"]
        lines.append(f"  ROLLED BACK{_at(latched)}, by {by}: {latched['reason']}")
        if latched["deciding_id"]:
            lines.append(f"  why: forkgate evidence show {latched['deciding_id']}{option}")
    lines += sent_home_lines(rollout, option)
    old = rollout["old_pool"]
    if old is not None and not old["ready"]:
        lines.append(f"  OLD POOL {rollout['baseline']} could not take everything back: {old['reason']}")
    lines.append(f"  {next_line(rollout, option)}")
    lines += early_lines(rollout)
    lines += [verdict_line(verdict) for verdict in rollout["verdicts"]]
    return lines


def early_lines(rollout: dict[str, Any]) -> list[str]:
    """What a lift should wait for."""
    return [f"    a lift now would be early: {one}" for one in rollout["too_early"]]


def next_line(rollout: dict[str, Any], option: str = "") -> str:
    """The next command to type; where none is, what it waits for."""
    if rollout["next"] is not None:
        return f"next: {rollout['next']}{option}"
    blocked = rollout["blocked_by"]
    if not blocked:
        return "next: nothing, it goes on by itself"
    more = f" (and {len(blocked) - 1} more: forkgate rollout plan {rollout['name']}{option})"
    return f"next: nothing, it waits: {blocked[0]}{more if len(blocked) > 1 else ''}"


def check_line(check: dict[str, Any]) -> str:
    """A check before the traffic: to do, running and how far, or how it ended."""
    said = f": {check['summary']}" if check["summary"] else ""
    if check["progress"] is not None:
        said = f": {progress_words(check['progress'])}"
    return f"  {check['check'].replace('_', ' ')} {check['answer'].replace('_', ' ')}{said}"


def progress_words(progress: dict[str, Any]) -> str:
    """How far a check is that runs."""
    waits = f", waits: {progress['waiting']}" if progress["waiting"] else ""
    wanted = "" if progress["wanted"] is None else f" of {progress['wanted']}"
    return f"{progress['answers']}{wanted} answers, {_span(progress['elapsed_s'])}{waits}"


def drop_lines(rollout: dict[str, Any]) -> list[str]:
    """Captures of this rollout that became no pair, and what keeps its copies from starting: where to look
    while it waits for pairs."""
    shadow, lines = rollout["shadow"], []
    dropped = {reason: count for reason, count in sorted(shadow["dropped"].items()) if count}
    if dropped:
        lines.append(f"  dropped {sum(dropped.values())} since the judge started: {_counts(dropped)}")
        details = shadow["drop_details"]
        lines += [f"    {reason}, the last one: {details[reason]}" for reason in dropped if reason in details]
    refused = {why: count for why, count in sorted(shadow["refused"].items()) if count}
    if refused:
        lines.append(f"  starts put off or refused: {_counts(refused)}")
    if rollout["other_drops"]:
        lines.append(
            f"  the ledger's other drops, of no rollout (at edges, or before this judge): "
            f"{_counts(rollout['other_drops'])}"
        )
    return lines


def _counts(by_name: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in by_name.items())


def suite_line(suite: dict[str, Any]) -> str:
    """A suite of this stage and how far it is."""
    if suite["done"]:
        return f"  {suite['summary']}"
    if suite["answers"] is None:
        return f"  suite {suite['suite']} waits for its turn, {suite['passes']} passes"
    waits = f", waits: {suite['waiting']}" if suite["waiting"] else ""
    return (
        f"  suite {suite['suite']} {suite['answers']} of {suite['wanted']} answers, "
        f"pass {suite['passage'] + 1} of {suite['passes']}{waits}"
    )


def forks_lines(rollout: dict[str, Any]) -> list[str]:
    """Forks by class, and what the baseline differs from itself by."""
    lines = []
    for arm, of in (("candidate", rollout["pairs"]), ("control", rollout["controls"])):
        classes = rollout["fork_classes"].get(arm)
        if classes:
            told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(classes.items()))
            lines.append(f"  forks of the {arm} in {of} pairs: {told}")
    for where, floor in sorted(rollout["floors"].items()):
        lines.append(
            f"  noise floor of {where}: sigma {floor['sigma_nats']:.3g} nats, total variation "
            f"{floor['tv_q99']:.3g} (99 %), from {floor['n']} control pairs"
        )
    if rollout["repeats"]:
        lines.append(f"  {rollout['repeats']} of {rollout['comparisons']} asked what had been asked before")
    return lines


def verdict_line(verdict: dict[str, Any]) -> str:
    """A gate's answer with all that it rests on."""
    numbers = "".join(
        f", {name} {verdict[name]:.4g}" for name in ("value", "limit") if verdict.get(name) is not None
    )
    interval = verdict.get("interval")
    if interval is not None:
        numbers += f", interval {interval[0]:.4g} to {interval[1]:.4g}"
    for what in ("rollback", "promotion"):
        nats, threshold = verdict.get(f"{what}_nats"), verdict.get(f"{what}_threshold_nats")
        if nats is not None and threshold is not None:
            numbers += f", {what} {nats:.3g} of {threshold:.3g} nats"
    if verdict.get("alpha") is not None:
        numbers += f", alpha {verdict['alpha']:.3g}"
    return f"  gate {verdict['gate']}: {verdict['answer']}{numbers}, n {verdict['n']}: {verdict['reason']}"


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

"""``python -m bench.attribution --battery DIR [--json]``: fork classes of real generations under known
changes.

A battery is a folder with ``ENGINE.jsonl.gz`` (one generation a line) and ``pairs.json`` (what to
compare, and which classes are right). Data on stdout; with ``--json`` the last line is one object
``{pairs, correct, benign_as_shift, missed}``. Exit 0 when every pair is in an allowed class, no benign
pair is called a distribution shift and no share is missed; 1 otherwise; 2 for a folder that is no
battery.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparator.compare import compare
from comparator.floor import floor_of
from comparator.pair import Pair
from comparator.precision import spacing_nats
from comparator.records import Arm, CaptureId, Exchange, ExchangeId, Fact, Outcome, Sampling, Step, Timing
from comparator.taxonomy import Allowance, ForkClass, classify

Generation = dict[str, Any]
Key = tuple[str, str, int]


class BatteryError(Exception):
    """A folder that is no battery: what, where."""


def read_generations(folder: Path) -> dict[Key, Generation]:
    """Every generation by engine, variant and prompt."""
    found: dict[Key, Generation] = {}
    files = sorted(folder.glob("*.jsonl.gz"))
    if not files:
        raise BatteryError(f"{folder}: no *.jsonl.gz; give the folder of a battery")
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    said = json.loads(line)
                    found[said["engine"], said["variant"], said["prompt"]] = said
                except (ValueError, KeyError) as exc:
                    raise BatteryError(f"{path}:{number}: no generation ({exc!r})") from exc
    return found


def read_entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / "pairs.json"
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        raise BatteryError(f"{path}: cannot be read ({exc})") from exc
    return entries


def exchange_of(said: Generation, arm: Arm, declare: dict[str, Any]) -> Exchange:
    """One generation as an exchange; ``declare`` overwrites what was asked (None removes it)."""
    asked = {**said["sampling"], **declare}
    asked = {name: value for name, value in asked.items() if value is not None}
    known = {name: asked.pop(name) for name in list(asked) if name in Sampling.__struct_fields__}
    for name in ("stop", "stop_token_ids"):
        if name in known:
            known[name] = (known[name],) if isinstance(known[name], str) else tuple(known[name])
    steps = tuple(
        Step(
            token_id=token_id,
            logprob=next((logprob for listed, logprob in top if listed == token_id), None),
            top_ids=tuple(listed for listed, _ in top),
            top_logprobs=tuple(logprob for _, logprob in top),
            received_s=0.0,
        )
        for token_id, top in zip(said["token_ids"], said["top"], strict=True)
    )
    return Exchange(
        exchange_id=ExchangeId(f"{said['engine']}/{said['variant']}/{said['prompt']}/{arm}"),
        capture_id=CaptureId(str(said["prompt"])),
        arm=arm,
        rollout="battery",
        tenant="-",
        request_id=str(said["prompt"]),
        pool=said["engine"],
        endpoint="-",
        engine=said["engine"],
        environment_digest=Fact(unknown="a battery has none"),
        prompt_token_ids=tuple(said["prompt_token_ids"]),
        sampling=Sampling(**known, extra=asked),
        as_tokens=True,
        token_only=False,
        steps=steps,
        finish_reason=said["finish_reason"],
        stop_reason=said["stop_reason"],
        outcome=Outcome.COMPLETED,
        timing=Timing(started_unix_s=0.0, ttft_s=None, last_token_s=None, total_s=0.0, tokens=len(steps)),
    )


def compared(
    generations: dict[Key, Generation],
    left: Sequence[str],
    right: Sequence[str],
    arm: Arm,
    entry: dict[str, Any],
) -> dict[int, Pair]:
    """Pairs by prompt, of the prompts that baseline, candidate and control all have."""
    declare = entry.get("declare") or {}
    pairs = {}
    for prompt in sorted({key[2] for key in generations}):
        needed = [(*entry[role], prompt) for role in ("baseline", "candidate", "control")]
        if all(key in generations for key in needed):
            pairs[prompt] = compare(
                exchange_of(generations[left[0], left[1], prompt], Arm.BASELINE, {}),
                exchange_of(
                    generations[right[0], right[1], prompt], arm, declare if arm is Arm.CANDIDATE else {}
                ),
            )
    return pairs


def judge(generations: dict[Key, Generation], entry: dict[str, Any]) -> dict[int, tuple[ForkClass, str]]:
    """Each prompt's class and reason."""
    floor = floor_of(compared(generations, entry["baseline"], entry["control"], Arm.CONTROL, entry).values())
    pairs = compared(generations, entry["baseline"], entry["candidate"], Arm.CANDIDATE, entry)
    said = {
        "baseline": [step for pair in pairs.values() for step in pair.left.steps],
        "candidate": [step for pair in pairs.values() for step in pair.right.steps],
    }
    spacing = max(spacing_nats(entry[role][0], steps) for role, steps in said.items())
    allowance = Allowance(spacing_nats=spacing, floor=floor)
    found = {}
    for prompt, pair in pairs.items():
        attribution = classify(pair, allowance)
        if attribution is None:
            raise BatteryError(f"{entry['name']}, prompt {prompt}: set aside: {pair.set_aside_reason}")
        found[prompt] = (attribution.fork_class, attribution.reason)
    return found


def run(folder: Path, *, reasons: bool) -> tuple[dict[str, Any], str]:
    """The summary, and the table for people."""
    generations = read_generations(folder)
    pairs = correct = benign_as_shift = 0
    missed: list[str] = []
    lines: list[str] = []
    for entry in read_entries(folder):
        found = judge(generations, entry)
        counts = collections.Counter(fork_class for fork_class, _ in found.values())
        allowed = {ForkClass(name) for name in entry["allowed"]}
        pairs += len(found)
        correct += sum(count for fork_class, count in counts.items() if fork_class in allowed)
        if ForkClass.DISTRIBUTION_SHIFT not in allowed:
            benign_as_shift += counts[ForkClass.DISTRIBUTION_SHIFT]
        short = [
            f"{name} {counts[ForkClass(name)]}/{len(found)} under {share:g}"
            for name, share in (entry.get("must") or {}).items()
            if counts[ForkClass(name)] < share * len(found)
        ]
        missed += [f"{entry['name']}: {text}" for text in short]
        wrong = sorted(fork_class for fork_class in counts if fork_class not in allowed)
        said = ", ".join(f"{fork_class} {count}" for fork_class, count in sorted(counts.items()))
        mark = "ok" if not wrong and not short else "WRONG"
        lines.append(f"{mark:<6} {entry['name']:<50} {said}")
        if reasons:
            lines += [f"{'':<10} {prompt:>4} {kind}: {why}" for prompt, (kind, why) in found.items()]
    summary = {
        "pairs": pairs,
        "correct": correct,
        "benign_as_shift": benign_as_shift,
        "missed": missed,
    }
    return summary, "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.attribution", description=__doc__)
    parser.add_argument("--battery", type=Path, required=True, help="folder with pairs.json and *.jsonl.gz")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--reasons", action="store_true", help="why each pair got its class")
    options = parser.parse_args(arguments)
    try:
        summary, table = run(options.battery, reasons=options.reasons)
    except BatteryError as exc:
        print(exc, file=sys.stderr)
        return 2
    print(table)
    if options.json:
        print(json.dumps(summary))
    else:
        print(
            f"{summary['correct']} of {summary['pairs']} pairs in an allowed class, "
            f"{summary['benign_as_shift']} benign called a shift, missed: {summary['missed'] or 'nothing'}"
        )
    good = summary["correct"] == summary["pairs"] and not summary["benign_as_shift"] and not summary["missed"]
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

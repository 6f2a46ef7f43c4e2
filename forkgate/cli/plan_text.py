"""A rollout's plan in words: steps, what each waits for, and what an edited file would change."""

from __future__ import annotations

from typing import Any

from forkgate.cli.status import early_lines, progress_words

MARKS = {"done": "✓", "here": "→", "to come": " "}


def plan_lines(plan: dict[str, Any], option: str = "") -> list[str]:
    """``option`` is added to the commands it suggests."""
    lines = [f"rollout {plan['name']}  {plan['baseline']} → {plan['candidate']}  {plan['place']}"]
    for step in plan["steps"]:
        lines.append(f"  {MARKS[step['standing']]} {step['name']}{_wants(step)}")
        if step["standing"] == "here" and plan["check"] is not None:
            lines.append(f"      {progress_words(plan['check'])}")
        lines += [f"      waits for: {reason}" for reason in step["blocked_by"]]
    if not any(step["standing"] == "here" for step in plan["steps"]):
        lines += [f"  {reason}" for reason in plan["blocked_by"]]
    if plan["next"] is not None:
        lines.append(f"  next: {plan['next']}{option}")
    return lines + early_lines(plan)


def _wants(step: dict[str, Any]) -> str:
    if step["advance"] is None:
        return ""
    here = step["standing"] == "here"
    parts = []
    if here:
        parts.append(
            f"pairs {step['pairs']}" + (f" of {step['minimum_pairs']}" if step["minimum_pairs"] else "")
        )
        parts.append(span(step["lasted_s"]) + (f" of {span(step['minimum_s'])}" if step["minimum_s"] else ""))
    else:
        parts += [f"pairs {step['minimum_pairs']}"] if step["minimum_pairs"] else []
        parts += [span(step["minimum_s"])] if step["minimum_s"] else []
    parts.append("every gate passes" if step["judged"] else "the old pool could take everything back")
    parts.append("by itself" if step["advance"] == "gates" else "then a person promotes")
    return ": " + ", ".join(parts)


def span(seconds: float) -> str:
    """``45 s``, ``14 min``, ``1 h 5 min``, ``3 d 2 h``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
    return f"{whole // 86_400} d" + (f" {whole % 86_400 // 3600} h" if whole % 86_400 >= 3600 else "")


def edit_lines(edit: dict[str, Any]) -> list[str]:
    """What a restart under an edited file would do to one rollout."""
    if "refused" in edit:
        return [f"a restart would be refused: {edit['refused']}"]
    name = edit["name"]
    if edit["new"]:
        held = [] if edit["held"] is None else [f"  HELD: {edit['held']}"]
        return [f"rollout {name}  new: it would be {edit['place_after']}", *held]
    if edit["gone"]:
        return [
            f"rollout {name}  {edit['place']}: the file does not name it, so it would be over",
            *_moves(edit),
        ]
    if not edit["changes"]:
        return [f"rollout {name}  {edit['place']}: nothing would change"]
    lines = [f"rollout {name}  {edit['place']}"]
    lines += [f"  {change}" for change in edit["changes"]]
    if edit["place_after"] != edit["place"]:
        lines.append(f"  it would be {edit['place_after']}")
    else:
        lines.append(f"  it would stay in {edit['place']}")
    if edit["held"] is not None:
        lines.append(f"  HELD: {edit['held']}")
    if edit["home"] is not None:
        lines.append(f"  home: {edit['home'][0]} → {edit['home'][1]}")
    lines += _moves(edit) or ["  no tenant's live traffic would move"]
    lines += [f"  would wait for: {reason}" for reason in edit["blocked_by"]]
    return lines


def _moves(edit: dict[str, Any]) -> list[str]:
    return [f"  {tenant}: {before} → {after}" for tenant, (before, after) in edit["moves"].items()]

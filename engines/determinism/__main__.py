"""``python -m engines.determinism --model DIR``: the audit as a process.

Options are checked, and what must stand in the environment is set, before torch is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engines.reference.options import DType, EngineServerOptions, Matmul

if TYPE_CHECKING:
    from engines.determinism.audit import Plan, Report
    from engines.determinism.operators import Operators
    from engines.determinism.repeat import Repeat

_PASS, _FAIL, _USAGE, _INCONCLUSIVE, _UNMEASURED = range(5)
_VERDICTS = {"pass": _PASS, "fail": _FAIL, "inconclusive": _INCONCLUSIVE}
_PLAN = ("runs", "tokens", "rounds", "concurrency", "seed", "shared_batch")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 pass, 1 fail, 2 bad options, 3 an operator that nobody vouches for, 4 not measured."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parsed = vars(_parser().parse_args(arguments))
    as_json = parsed.pop("json")
    told = {name: parsed.pop(name) for name in _PLAN}
    try:
        options = EngineServerOptions(**parsed)
        if not 0 <= told["seed"] < 2**31:
            raise ValueError(f"--seed: {told['seed']} is outside 0-{2**31 - 1}")
    except ValueError as error:
        return _leave(_USAGE, str(error))
    if not (pathlib.Path(options.model_dir) / "config.json").is_file():
        return _leave(_USAGE, f"--model {options.model_dir}: there is no config.json in it")
    _restart(told["seed"], arguments)
    return _run(options, told, as_json)


def _restart(seed: int, arguments: list[str]) -> None:
    """Become a process whose environment was right from the start: hashes and cuBLAS read it once."""
    wanted = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": str(seed)}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        command = [sys.executable, "-m", "engines.determinism", *arguments]
        os.execve(sys.executable, command, {**os.environ, **wanted})  # noqa: S606


def _run(options: EngineServerOptions, told: dict[str, Any], as_json: bool) -> int:
    try:
        import torch

        from engines.determinism import audit, repeat, strict, workload
        from engines.reference import model
    except ImportError as error:
        return _leave(_UNMEASURED, f"{error.name} cannot be imported: pip install 'forkgate[torch]'")
    try:
        plan: Plan = audit.Plan(**told)
    except ValueError as error:
        return _leave(_USAGE, str(error))
    say = _say if sys.stderr.isatty() else (lambda _: None)
    how = workload.How(max_batch=options.max_batch, prefill_chunk=options.prefill_chunk)
    try:
        loaded = model.load(options)
    except (model.UnsupportedModel, OSError, ValueError) as error:
        return _leave(_USAGE, str(error))
    except (RuntimeError, AssertionError) as error:  # a device that is not there
        return _leave(_UNMEASURED, f"--device {options.device}: {_first_line(error)}")
    try:
        report = audit.audit(loaded, plan, how=how, say=say)
    except ValueError as error:
        return _leave(_USAGE, str(error))
    except (strict.NotStrict, repeat.NothingToCompare) as error:
        return _leave(_UNMEASURED, str(error))
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return _leave(_UNMEASURED, f"the model does not run to the end: {_first_line(error)}")
    if as_json:
        import msgspec

        told_json = {
            "artifact": loaded.artifact["digest"],
            **msgspec.to_builtins(report),
        }
        _print(json.dumps(told_json))
    else:
        _print(text(report, loaded.artifact["digest"]))
    return _VERDICTS[report.verdict]


def text(report: Report, artifact: str) -> str:
    """The report for a person."""
    met = report.operators
    lines = [
        f"model     {artifact}",
        f"runs on   torch {report.torch}, {report.device}, {report.dtype}, {report.threads} threads",
        "settings  " + ", ".join(f"{name} {value}" for name, value in report.settings.items()),
        "",
        _headline(met),
    ]
    lines += [
        f"  {one.operator}  {one.count} x  in {one.module or '(place unknown)'}: {one.says}"
        for one in met.alerts
    ]
    lines += [f"  {one.operator}  {one.count} x  in {one.module}: {one.says}" for one in met.unvouched]
    if report.repeats:
        lines += ["", "the same request again:"]
        lines += [f"  {_repeat(one)}" for one in report.repeats]
    if report.cost is not None:
        lines += ["", *_cost(report)]
    lines += ["", *(f"note: {note}" for note in report.notes)]
    lines += [f"{report.verdict}: {reason}" for reason in report.reasons] or [report.verdict]
    return "\n".join(lines)


def _headline(met: Operators) -> str:
    return (
        f"operators without a deterministic implementation: {len(met.alerts)}, "
        f"of {met.seen} different ones in {met.calls:,} calls"
    )


def _repeat(one: Repeat) -> str:
    bits = "every bit equal" if one.logits_equal else "logits differ"
    tokens = "tokens equal" if one.tokens_equal else "tokens differ"
    told = f"{one.name}: {bits}, {tokens} ({one.runs} runs of {one.steps} steps)"
    if one.first is not None:
        by = one.first.largest_logit_difference
        told += f"; first at step {one.first.step} of request {one.first.request}, {one.first.run}"
        told += "" if by is None else f", by up to {by:.3g}"
    return told


def _cost(report: Report) -> list[str]:
    assert report.cost is not None
    cost = report.cost
    title = f"cost, {cost.rounds} rounds by turns, {cost.tokens} tokens a request, {cost.concurrency} at once"
    lines = [f"{title} (latency: alone):"]
    for figure in cost.figures:
        lines.append(
            f"  {figure.way:<14} {figure.tokens_per_s:8.1f} tokens/s   ttft {1e3 * figure.ttft_s:8.2f} ms   "
            f"tpot {1e3 * figure.tpot_s:8.2f} ms"
        )
    for one in cost.ratios:
        interval = (
            "no interval: too few rounds"
            if one.low is None or one.high is None
            else f"{one.low:.3f}-{one.high:.3f} at {100 * (one.covered or 0):.1f} %"
        )
        lines.append(f"  {one.way} / plain, {one.of}: {one.ratio:.3f} ({interval})")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forkgate determinism audit",
        description="Run a model under PyTorch's strict settings: list every operator without a "
        "deterministic implementation, run requests again and compare every bit, time it with and without.",
        epilog="Exit status: 0 pass; 1 such an operator was met, or a request did not repeat itself; "
        "2 usage; 3 an operator that PyTorch does not know; 4 could not be measured.",
    )
    parser.add_argument("--model", dest="model_dir", required=True, help="folder of the model")
    parser.add_argument("--dtype", type=DType, choices=list(DType), default=DType.FLOAT32)
    parser.add_argument("--matmul", type=Matmul, choices=list(Matmul), default=Matmul.AUTO)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 and its like")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads inside one operator")
    parser.add_argument("--max-batch", type=int, default=8, help="requests that run at once at most")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--prefill-chunk", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5, help="repetitions of each request that are compared")
    parser.add_argument("--tokens", type=int, default=24, help="of each answer that is compared or timed")
    parser.add_argument("--rounds", type=int, default=6, help="of timing; 0 leaves the cost out")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at once while timing")
    parser.add_argument("--seed", type=int, default=0, help="of torch, numpy, random and PYTHONHASHSEED")
    parser.add_argument(
        "--shared-batch",
        action="store_true",
        help="fail also where requests that share passes move each other",
    )
    parser.add_argument("--json", action="store_true", help="one JSON value on standard output")
    return parser


def _leave(status: int, message: str) -> int:
    _say(f"forkgate determinism audit: {message}")
    return status


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)  # noqa: T201


def _print(words: str) -> None:
    print(words, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())

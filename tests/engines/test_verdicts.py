"""What the shipped policies say of real models: bfloat16 against itself, against damage, against a template.

Baseline and candidate are reference engines in bfloat16, where the batch moves logits. Live load keeps four
requests at a time in the baseline's batches; the candidate runs nothing but shadow arms. So equal
environments fork, and only a verdict that knows the baseline's own noise may call them equal. (The old pool
names its endpoint as `shadow_endpoints` too: shadows there wait for no lull, which this load never leaves.)
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from policies.policy import shipped_text
from policies.suites import Sample, parse_suite, shipped
from tests.support.changed_models import damaged, other_template
from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.timeout(2400)

ROLLOUT = "old-to-new"
LIVE = 4
"""Requests in the baseline's batches at any time."""
TOKENS = 12
ENOUGH = 400
"""Captured requests over which equal environments must stay quiet."""
SMALL_SUITE = 16

CONFIG = """
listen: {{host: 127.0.0.1, port: 0, workers: 1}}
state_dir: state
pools:
  - {{name: old, endpoints: ["{old}"], shadow_endpoints: ["{old}"], engine: {{kind: reference}}}}
  - {{name: new, endpoints: ["{new}"], engine: {{kind: reference}}}}
home: old
rollouts:
  - name: old-to-new
    baseline: old
    candidate: new
    policy: {policy}
    global_seed: verdicts
    start: on_load
    checks: {{self_check: false, quick_check: false}}
    shadow: {{percent: 100, token_only_percent: 0, control_percent: 30, max_tokens: {tokens}, logprobs: 20,
             in_flight: 8, samples_in_flight: 4, queue_items: 4096, queue_age_s: 3600}}
"""


@pytest.fixture(scope="module")
def old(model_dir: pathlib.Path) -> Iterator[EngineProcess]:
    with reference_engine(model_dir, "--dtype", "bfloat16", "--max-batch", "16", *NAMED) as engine:
        yield engine


@pytest.fixture(scope="module")
def equal(model_dir: pathlib.Path) -> Iterator[EngineProcess]:
    with reference_engine(model_dir, "--dtype", "bfloat16", "--max-batch", "16", *NAMED) as engine:
        yield engine


NAMED = ("--served-model-name", "smollm2")


def asked() -> list[Sample]:
    """Short greedy questions, each another prompt."""
    samples = parse_suite(shipped("starter"), "starter.jsonl", "starter").samples
    return [
        one
        for one in samples
        if one.messages and one.temperature == 0 and sum(len(turn.content) for turn in one.messages) < 400
    ]


def open_answers(directory: pathlib.Path) -> str:
    """The shipped policy, over a few of its samples: a thousand take an hour on two cores."""
    lines = shipped("starter").splitlines(keepends=True)
    few = b"".join(lines[:: max(1, len(lines) // SMALL_SUITE)][:SMALL_SUITE])
    (directory / "few.jsonl").write_bytes(few)
    text = shipped_text("open-answers")
    assert "\n  starter:\n    passes: 5" in text
    text = text.replace("\n  starter:\n    passes: 5", "\n  few:\n    file: few.jsonl\n    passes: 5")
    text = text.replace("suite: starter", "suite: few")
    assert text.count("margin: 0.005") == 2
    # What few samples can decide at all: forkgate refuses margins that they never could.
    (directory / "policy.yaml").write_text(text.replace("margin: 0.005", "margin: 0.5"))
    return "./policy.yaml"


class Load:
    """Live clients of the sidecar: :data:`LIVE` at a time, each request another prompt."""

    def __init__(self, serving: Serving) -> None:
        self._url = serving.url + "/v1"
        self._samples = itertools.cycle(asked())
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.errors: list[str] = []
        self.answered = 0

    def _next(self) -> Sample:
        with self._lock:
            return next(self._samples)

    def _client(self) -> None:
        with openai.OpenAI(base_url=self._url, api_key="sk-test", max_retries=0, timeout=300) as client:
            while not self._stop.is_set():
                sample = self._next()
                try:
                    client.chat.completions.create(
                        model="smollm2",
                        messages=[{"role": t.role, "content": t.content} for t in sample.messages],  # type: ignore[misc]
                        max_tokens=TOKENS,
                        temperature=0,
                    )
                except openai.OpenAIError as error:
                    self.errors.append(str(error))
                self.answered += 1

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        with ThreadPoolExecutor(LIVE) as pool:
            clients = [pool.submit(self._client) for _ in range(LIVE)]
            try:
                yield self
            finally:
                self._stop.set()
        for client in clients:
            client.result()


@contextlib.contextmanager
def rollout(
    directory: pathlib.Path, old: EngineProcess, new: EngineProcess, policy: str
) -> Iterator[Serving]:
    text = CONFIG.format(old=old.url, new=new.url, policy=policy, tokens=TOKENS)
    with serving(directory, text) as one:
        yield one


def state(one: Serving) -> dict[str, Any]:
    found: dict[str, Any] = one.admin(f"/v1/rollouts/{ROLLOUT}")
    return found


def ended(one: Serving) -> int:
    ledger = one.admin("/v1/ledger")
    return int(ledger["compared"])


def verdicts(rollout: dict[str, Any]) -> str:
    return "\n".join(f"{v['gate']}: {v['answer']}: {v['reason']}" for v in rollout["verdicts"])


def test_audit_forks_where_only_the_batch_differs(tmp_path, old, equal):
    with rollout(tmp_path, old, equal, "audit") as one, Load(one).running():
        one.until("the audit policy to fork", lambda: state(one)["latched"] is not None, 300)
        found = state(one)
    assert found["latched"]["gate"] == "token_equality"


def test_open_answers_stay_quiet_over_equal_environments(tmp_path, old, equal, capsys):
    with rollout(tmp_path, old, equal, open_answers(tmp_path)) as one, Load(one).running() as load:
        one.until(f"{ENOUGH} comparisons", lambda: ended(one) >= ENOUGH or state(one)["latched"], 1700)
        found, ledger = state(one), one.admin("/v1/ledger")
    with capsys.disabled():
        print(
            f"\nequal environments: {ledger['compared']} compared, {found['forks']} forks\n{verdicts(found)}"
        )
    assert found["latched"] is None, found["latched"]
    assert found["held"] is None, found["held"]
    assert not load.errors
    assert found["forks"] > 0, "nothing forked, so that nothing was shown"
    assert all(verdict["answer"] != "fail" for verdict in found["verdicts"]), verdicts(found)


def test_damaged_weights_are_rolled_back(tmp_path, old, model_dir, capsys):
    directory = tmp_path / "serve"
    directory.mkdir()
    with (
        reference_engine(
            damaged(model_dir, tmp_path / "damaged"), "--dtype", "bfloat16", "--max-batch", "16", *NAMED
        ) as new,
        rollout(directory, old, new, open_answers(directory)) as one,
        Load(one).running() as load,
    ):
        one.until("damage to be noticed", lambda: state(one)["latched"] is not None, 600)
        found, compared = state(one), ended(one)
        shadow = found["shadow"]["spent"]
    with capsys.disabled():
        print(
            f"\ndamaged weights: rolled back by {found['latched']['gate']} after {compared} comparisons, "
            f"{shadow['total_by_pool'].get('new', 0)} prompt and output tokens on the candidate\n"
            f"{found['latched']['reason']}"
        )
    assert compared < ENOUGH / 4
    assert not load.errors


def test_another_chat_template_holds_and_blames_no_number(tmp_path, old, model_dir):
    directory = tmp_path / "serve"
    directory.mkdir()
    with (
        reference_engine(
            other_template(model_dir, tmp_path / "template"),
            "--dtype",
            "bfloat16",
            "--max-batch",
            "16",
            *NAMED,
        ) as new,
        rollout(directory, old, new, open_answers(directory)) as one,
        Load(one).running() as load,
    ):
        one.until("the mismatch to be noticed", lambda: state(one)["held"] is not None, 300)
        one.until("more comparisons", lambda: ended(one) >= 12, 300)
        found = state(one)
    assert found["hold"]["cause"] == "encoding", found["hold"]
    assert "prompt token IDs differ" in found["held"]
    assert found["latched"] is None
    assert not any(verdict["answer"] == "fail" for verdict in found["verdicts"]), verdicts(found)
    assert not load.errors

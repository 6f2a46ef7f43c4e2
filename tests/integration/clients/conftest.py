"""A real model behind the reference engine, and forkgate in front of it twice: with a shadow and without.

The engine has one place (``--max-batch 1``), so every request, live or shadow, is computed alone and its
numbers are the same to the last bit, whoever else is waiting: bodies can be compared as bytes, logprobs
included.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator

import pytest

from engines.model import ensure_smollm2
from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.serving import Serving, serving
from tests.support.waiting import LIMIT_S

MODEL = "smollm2"

PLAIN = """
listen: {{host: 127.0.0.1, port: 0, workers: 1}}
state_dir: state
pools: [{{name: old, endpoints: ["{engine}"], engine: {{kind: reference}}}}]
home: old
identity: {{tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}}
tenants: [{{name: acme}}]
"""
# Both pools are the one engine: what is looked at here is the live answer while copies of it run. The short
# queue keeps one running at all times, and no backlog.
MIRRORED = """
listen: {{host: 127.0.0.1, port: 0, workers: 1}}
state_dir: state
pools:
  - {{name: old, endpoints: ["{engine}"], engine: {{kind: reference}}}}
  - {{name: new, endpoints: ["{engine}"], engine: {{kind: reference}}}}
home: old
identity: {{tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}}
tenants: [{{name: acme}}]
capture: {{flush_s: 0.01, queue_age_s: 600}}
rollouts:
  - name: old-to-new
    baseline: old
    candidate: new
    policy: audit
    global_seed: s
    checks: {{self_check: false, quick_check: false}}
    shadow: {{percent: 100, token_only_percent: 0, control_percent: 0, max_tokens: 3, logprobs: 20,
             in_flight: 1, queue_items: 2}}
    start: on_load
    shadow_stage: {{skip: true}}
    steps: [{{tenants: [acme]}}]
"""


@pytest.fixture(scope="session")
def engine() -> Iterator[EngineProcess]:
    options = ("--served-model-name", MODEL, "--threads", "1", "--max-batch", "1")
    with reference_engine(ensure_smollm2(), *options) as running:
        yield running


@pytest.fixture(scope="session")
def plain(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """forkgate in front of the engine, no rollout."""
    with serving(tmp_path_factory.mktemp("plain"), PLAIN.format(engine=engine.url)) as one:
        yield one


@pytest.fixture(scope="session")
def mirrored(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The same, and every request is mirrored."""
    with serving(tmp_path_factory.mktemp("mirrored"), MIRRORED.format(engine=engine.url)) as one:
        yield one


@pytest.fixture(params=["plain", "mirrored"])
def road(request: pytest.FixtureRequest) -> Serving:
    """Each of them in turn."""
    found: Serving = request.getfixturevalue(request.param)
    return found


class Load:
    """What the engine says of itself."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url + "/metrics", timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        values = dict(re.findall(r"^forkgate_reference_(\w+) ([0-9.e-]+)$", text, re.MULTILINE))
        self.running = int(values["requests_running"])
        self.waiting = int(values["requests_waiting"])
        self.kv_cache_usage = float(values["kv_cache_usage_ratio"])
        self.generated_tokens = int(values["generated_tokens_total"])

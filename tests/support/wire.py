"""Stream events in the shapes that vLLM 0.32 and the reference engine send, made from plain steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Top = Sequence[tuple[int, float]]


def completion_event(
    steps: Sequence[tuple[int, Top]],
    *,
    text: str = "t",
    finish: str | None = None,
    stop_reason: int | str | None = None,
    prompt: Sequence[int] | None = None,
    logprobs: bool = True,
) -> dict[str, Any]:
    """One chunk of ``/v1/completions``. The drawn token's logprob is that of its entry."""
    choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    choice |= {"stop_reason": stop_reason, "token_ids": [token for token, _ in steps]}
    if logprobs and steps:
        choice["logprobs"] = {
            "text_offset": [0] * len(steps),
            "tokens": [f"token_id:{token}" for token, _ in steps],
            "token_logprobs": [dict(top)[token] for token, top in steps],
            "top_logprobs": [{f"token_id:{one}": value for one, value in top} for _, top in steps],
        }
    if prompt is not None:
        choice["prompt_token_ids"] = list(prompt)
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def chat_event(
    steps: Sequence[tuple[int, Top]],
    *,
    text: str = "t",
    finish: str | None = None,
    prompt: Sequence[int] | None = None,
) -> dict[str, Any]:
    """One chunk of ``/v1/chat/completions``."""
    content = [
        {
            "token": f"token_id:{token}",
            "logprob": dict(top)[token],
            "bytes": [116],
            "top_logprobs": [
                {"token": f"token_id:{one}", "logprob": value, "bytes": [116]} for one, value in top
            ],
        }
        for token, top in steps
    ]
    choice = {
        "index": 0,
        "delta": {"content": text},
        "logprobs": {"content": content},
        "finish_reason": finish,
    }
    choice["token_ids"] = [token for token, _ in steps]
    event = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    if prompt is not None:
        event["prompt_token_ids"] = list(prompt)
    return event


def generate_event(
    steps: Sequence[tuple[int, Top]], *, finish: str | None = None, prompt: Sequence[int] | None = None
) -> dict[str, Any]:
    """One chunk of vLLM's ``/inference/v1/generate``."""
    content = [
        {
            "token_id": token,
            "logprob": dict(top)[token],
            "rank": 1,
            "top_logprobs": [{"token_id": one, "logprob": value, "rank": 1} for one, value in top],
        }
        for token, top in steps
    ]
    choice = {"index": 0, "finish_reason": finish, "stop_reason": None, "logprobs": {"content": content}}
    choice["token_ids"] = [token for token, _ in steps]
    event: dict[str, Any] = {"request_id": "r", "usage": None, "output_mode": "tokens", "choices": [choice]}
    if prompt is not None:
        event["prompt_token_ids"] = list(prompt)
    return event


def usage_event(tokens: int, *, fingerprint: str | None = "vllm-0.32.0-abc") -> dict[str, Any]:
    event: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}
    if fingerprint is not None:
        event["system_fingerprint"] = fingerprint
    return event


def payload(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()

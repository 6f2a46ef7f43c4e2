"""The replaying server itself: it must catch what the adapters' tests rely on it to catch."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.support.recorded import DATA, RecordedServer, differences, fixture

ENGINES = ("sglang", "tensorrt_llm")
FILES = sorted(path for engine in ENGINES for path in (DATA / engine).glob("*.json"))
EXCHANGE: dict[str, Any] = {
    "request": {"method": "POST", "path": "/p", "body": {"a": 1, "b": {"$any": "string"}}},
    "response": {"status": 200, "body": {"ok": True}},
}


def asked(body: Any, path: str = "/p") -> Any:
    async def main() -> Any:
        server = RecordedServer(EXCHANGE)
        async with (
            server.serving(),
            aiohttp.ClientSession() as client,
            client.post(server.url + path, json=body) as response,
        ):
            return response.status, await response.json()

    return asyncio.run(main())


def test_the_recorded_request_gets_the_recorded_answer() -> None:
    assert asked({"a": 1, "b": "anything"}) == (200, {"ok": True})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"b": "x"}, r"body\.a is missing"),
        ({"a": 1, "b": "x", "c": 2}, r"body\.c is not in the engine's request"),
        ({"a": 1.0, "b": "x"}, r"body\.a: 1\.0 is sent for 1"),
        ({"a": True, "b": "x"}, r"body\.a: True is sent for 1"),
        ({"a": 1, "b": 2}, r"body\.b: 2 is no string"),
    ],
)
def test_any_other_request_fails_the_test(body: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        asked(body)


def test_a_path_that_the_engine_has_not_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="POST /q is no request of the engine's"):
        asked({}, "/q")


def test_lists_are_compared_whole() -> None:
    assert list(differences([1, 2], [1, 3])) == ["body: [1, 3] is sent for [1, 2]"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_fixture_says_where_it_is_from(path: Any) -> None:
    told = fixture(path.parent.name, path.stem)
    assert (told["engine"], told["feature"]) == (path.parent.name, path.stem)
    assert told["exchanges"]
    for source in told["source"]:
        assert source["file"]
        assert source["lines"]
        assert source["shows"]
        if "repository" in source:
            assert len(source["commit"]) == 40
        else:
            assert source["release"]
            assert len(source["wheel_sha256"]) == len(source["file_sha256"]) == 64

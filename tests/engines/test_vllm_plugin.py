"""Our plugin inside a real vLLM: a wheel with ``--no-deps`` in an environment that has vLLM's packages alone.

What it says of batches is held against vLLM's own account, its log of each iteration.
"""

from __future__ import annotations

import asyncio
import collections
import email
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from comparator.records import Arm, CaptureId, Exchange, Outcome
from engines import Call, CallKind, Capability, Engine, EngineOptions, Finish, Prompt, Steps, open_engine
from engines.identity import IDENTITY_HEADER
from engines.identity.record import Identity, UnknownField, from_json
from engines.vllm_plugin.book import EXPIRY_S, MOST_REQUESTS
from engines.vllm_plugin.marks import MARK
from proxy.mirror.arm import ArmLimits, Sources, run_arm
from proxy.mirror.record import ArmPlan
from tests.engines.conftest import named
from tests.support.engines import FakeEndpoint
from tests.support.vllm_server import MODEL, PROMPTS, Vllm, drawn
from tests.support.waiting import LIMIT_S, PATIENCE_S
from tools import plugin_venv

pytestmark = pytest.mark.timeout(1200)  # the first test waits for the server to start

DTYPE = "float32"
OUR_MODULES = {"comparator", "engines", "forkgate", "policies", "proxy"}
_ITERATION = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests"
)


@pytest.fixture(scope="module")
def plugged(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Python of an engine's environment into which the wheel was installed."""
    return plugin_venv.make(tmp_path_factory.mktemp("engine") / "venv", named("FORKGATE_VLLM_PYTHON"))


@pytest.fixture(scope="module")
def server(plugged: pathlib.Path, model_dir: pathlib.Path) -> Iterator[Vllm]:
    found = serving(plugged, model_dir)
    yield found
    found.stop()


def serving(python: pathlib.Path, model_dir: pathlib.Path, *flags: str) -> Vllm:
    return Vllm(
        str(python),
        model_dir,
        "--enable-logging-iteration-details",
        *flags,
        variables={"VLLM_PLUGINS": "forkgate"},
        folder=python.parent,  # not this checkout, whose modules are no wheel's
    )


def get(url: str) -> tuple[int, Any, dict[str, str]]:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, json.loads(answer.read()), headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), dict(error.headers)


def batch(url: str, request_id: str) -> tuple[int, Any]:
    return get(f"{url}/forkgate/batch/{urllib.parse.quote(request_id, safe='')}")[:2]


def record_of(server: Vllm) -> Identity:
    return from_json(get(server.url(DTYPE) + "/forkgate/identity")[1])


def post(url: str, body: dict[str, Any], **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return (
                answer.status,
                answer.read(),
                {name.lower(): value for name, value in answer.headers.items()},
            )
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), {name.lower(): value for name, value in error.headers.items()}


def use(server: Vllm, what: Callable[[Engine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        engine = open_engine(server.url(DTYPE), EngineOptions(kind="vllm", model=MODEL))
        try:
            await engine.probe()
            return await what(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


async def prompt_of(engine: Engine, place: int, tokens: int) -> Prompt:
    call = Call(
        kind=CallKind.CHAT, body={"messages": [{"role": "user", "content": PROMPTS[place]}]}, model=MODEL
    )
    encoding = await engine.encode(call)
    return Prompt(
        exchange_id=f"c{place}-{tokens}/baseline/0",
        model=MODEL,
        token_ids=encoding.token_ids,
        sampling=drawn(place, tokens),
        cache_salt=f"{place}-{tokens}",
    )


async def run(engine: Engine, prompt: Prompt) -> tuple[list[int], Finish]:
    parts = [part async for part in engine.generate(prompt)]
    finish = parts[-1]
    assert isinstance(finish, Finish)
    return [step.token_id for part in parts if isinstance(part, Steps) for step in part.steps], finish


# -- installation -----------------------------------------------------------------------------------


def test_the_wheel_installs_without_dependencies_and_clashes_with_nothing(plugged: pathlib.Path) -> None:
    def troubles(python: str) -> set[str]:
        done = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, cwd="/")
        return set(done.stdout.splitlines())

    more = troubles(str(plugged)) - troubles(named("FORKGATE_VLLM_PYTHON"))
    # What pip says of a package that came with --no-deps: that they are absent. No version of any is wrong.
    assert all(re.fullmatch(r"forkgate \S+ requires \S+, which is not installed\.", line) for line in more)
    assert any("ruamel" in line for line in more)  # so some of ours are absent, and nothing missed them


def test_the_server_loads_nothing_of_ours_but_identity_and_the_plugin(
    server: Vllm, plugged: pathlib.Path
) -> None:
    """In the server's own processes: no module of the sidecar, none of its dependencies on our account."""
    ask = (
        "import sys; before = set(sys.modules); import engines.vllm_plugin.endpoint, "
        "engines.vllm_plugin.general, engines.vllm_plugin.processor; "
        "print(' '.join(sorted({name for name in set(sys.modules) - before})))"
    )
    # vLLM first, so that what it imports is not laid at our door.
    done = subprocess.run(
        [str(plugged), "-c", "import vllm, vllm.v1.sample.logits_processor; " + ask],
        capture_output=True, text=True, check=True, cwd="/",
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
    )  # fmt: skip
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.partition(".")[0] in OUR_MODULES}
    assert {name for name in ours if not name.startswith(("engines.identity", "engines.vllm_plugin"))} <= {
        "engines",
        "engines.headers",
    }
    needed = {
        re.split(r"[^\w-]", one)[0].replace("-", "_")
        for one in importlib.metadata.requires("forkgate") or []
        if "extra" not in one
    }
    assert not {name.partition(".")[0] for name in loaded - ours} & (needed | {"ruamel", "opentelemetry"})


def test_installed_and_not_asked_for_it_changes_nothing(
    plugged: pathlib.Path, model_dir: pathlib.Path
) -> None:
    """Without ``VLLM_PLUGINS`` the server is a plain one, though vLLM loads any installed processor."""
    ask = (
        "import os; from vllm.plugins import load_general_plugins; load_general_plugins(); "
        "from vllm.v1.worker.worker_base import WorkerBase; "
        "from engines.vllm_plugin.processor import BatchProcessor; "
        "processor = BatchProcessor(None, None, 0); "
        "print('FORKGATE_BATCH_CHANNEL' in os.environ, hasattr(WorkerBase, 'forkgate_environment'), "
        "processor._rows, processor._writer)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
    done = subprocess.run(
        [str(plugged), "-c", ask], capture_output=True, text=True, check=True, cwd="/", env=environment
    )
    assert done.stdout.splitlines()[-1] == "False False None None"


def test_the_newer_model_runner_takes_it_and_hears_of_places(plugged: pathlib.Path) -> None:
    """vLLM's newer runner does not run on this machine (it needs Triton). Its loader does, and so do its own
    types: what the runner would hand over is handed over here."""
    done = subprocess.run(
        [str(plugged), "-c", _NEWER], capture_output=True, text=True, check=False, cwd="/",
        env={**os.environ, "VLLM_PLUGINS": "forkgate", "VLLM_LOGGING_LEVEL": "ERROR"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "classes": ["BatchProcessor"],
        "watched": [True, False],
        "same": True,
        "told": [[0, 2, 1], [3, 1, 0]],
    }


_NEWER = """
import json, types
import numpy, torch
from engines.vllm_plugin import channel, general, marks
general.register()
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs
import os
classes = _load_v2_logitsprocs(())
prompt = types.SimpleNamespace(np=numpy.array([9, 5, 0, 0], dtype=numpy.int32))
states = LogitsProcRequestState(
    device=torch.device("cpu"), max_num_reqs=4, vocab_size=8, all_token_ids=None, prompt_len=prompt,
    prefill_len=prompt, total_len=None)
reader = channel.Reader(os.environ[channel.VARIABLE])
processor = classes[0](types.SimpleNamespace(speculative_config=None), states)
mine = SamplingParams(extra_args={marks.MARK: "a"})
watched = [processor.add_request(1, mine), processor.add_request(0, SamplingParams())]
logits = torch.zeros(2, 8)
def context(order, visible):
    return LogitsContext(
        expanded_idx_mapping=None, idx_mapping=None, idx_mapping_np=numpy.array(order),
        expanded_local_pos=None, input_ids=None, pos=None, seq_lens_upper_bound_np=numpy.array(visible))
same = processor.apply(logits, context([0, 1], [9, 5])) is logits
processor.apply(logits, context([0, 1], [10, 6]))
processor.apply(logits, context([1], [8]))
told = []
reader.drain(lambda key, position, size, place, flags: told.append([position, size, place]))
names = [one.__name__ for one in classes]
print(json.dumps({"classes": names, "watched": watched, "same": same, "told": told}))
"""


# -- identity ---------------------------------------------------------------------------------------


def test_every_answer_carries_the_digest_of_the_record_that_is_served(server: Vllm) -> None:
    url = server.url(DTYPE)
    digest = record_of(server).digest
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
    answers = {
        "live": post(url + "/v1/completions", body),
        "live, streamed": post(url + "/v1/completions", {**body, "stream": True}),
        "a refusal": post(url + "/v1/completions", {**body, "max_tokens": -1}),
        "no such route": post(url + "/v1/nothing", {}),
        "no such model": post(url + "/v1/completions", {**body, "model": "other"}),
        "the record": get(url + "/forkgate/identity"),
    }
    assert {name: answer[2].get(IDENTITY_HEADER) for name, answer in answers.items()} == dict.fromkeys(
        answers, digest
    )
    assert [answer[0] for answer in answers.values()] == [200, 200, 400, 404, 404, 200]


def test_an_answers_bytes_are_those_of_a_server_without_the_plugin(server: Vllm, vllm: Vllm) -> None:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 12, "temperature": 0, "logprobs": 3}
    for change in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        told = []
        for one in (server, vllm):
            status, answer, headers = post(one.url(DTYPE) + "/v1/completions", {**body, **change})
            headers.pop(IDENTITY_HEADER, None)
            text = re.sub(rb'"id":"[^"]*"|"created":\d+', b"", answer)
            told.append((status, text, sorted(headers.keys() - {"date", "content-length"})))
        assert told[0] == told[1]


def test_the_record_is_the_workers_own(server: Vllm) -> None:
    record = record_of(server)
    told = record.fields
    assert (told["engine.name"], told["precision.dtype"], told["engine.device"]) == ("vllm", DTYPE, "cpu")
    assert (told["batch.max_sequences"], told["batch.max_tokens"], told["cache.prefix"]) == (16, 512, True)
    assert told["attention.backend"] == "CPU_ATTN"  # chosen as it starts: no flag and no endpoint tells it
    assert told["sampler.order"][-4:] == ["temperature", "min_p", "top_k", "top_p"]
    assert told["engine.flags_unlisted"] == []  # the command line is the API server's, and was read
    assert not isinstance(told["cpu.threads"], UnknownField)
    assert not isinstance(told["precision.tf32"], UnknownField)
    text = json.dumps(record.to_json())
    assert str(server.model_dir) not in text
    assert server.url(DTYPE).rpartition(":")[2] not in text
    assert "FORKGATE_BATCH" not in text


def test_the_same_environment_started_again_has_the_same_digest(
    server: Vllm, plugged: pathlib.Path, model_dir: pathlib.Path
) -> None:
    again = serving(plugged, model_dir)
    try:
        assert record_of(again) == Identity(fields=record_of(server).fields, about=record_of(again).about)
        assert record_of(again).digest == record_of(server).digest
    finally:
        again.stop()


# -- batches ----------------------------------------------------------------------------------------


def iterations(server: Vllm) -> list[int]:
    """Requests of each forward pass, by vLLM's own log."""
    return [int(context) + int(others) for _, context, _, others in _ITERATION.findall(server.log(DTYPE))]


def test_sizes_and_places_are_those_of_vllms_own_account(server: Vllm) -> None:
    """Eight at a time, of different lengths: the batch grows and shrinks. No prompt is cut, so that in a pass
    of *s* requests *s* tokens come, one of each place: over all passes each (s, place) must come as often as
    vLLM says that it ran a pass of *s*."""
    lengths = [6, 30, 12, 24, 18, 9, 27, 15]

    async def what(engine: Engine) -> list[tuple[list[int], Finish]]:
        prompts = [await prompt_of(engine, place, tokens) for place, tokens in enumerate(lengths)]
        nonlocal before
        before = len(iterations(server))
        return await asyncio.gather(*(run(engine, prompt) for prompt in prompts))

    before = 0
    answers = use(server, what)
    passes = collections.Counter(iterations(server)[before:])
    seen: collections.Counter[tuple[int, int]] = collections.Counter()
    for (ids, finish), tokens in zip(answers, lengths, strict=True):
        sizes, places = finish.facts["batch_size"].value, finish.facts["batch_place"].value
        assert len(ids) == len(sizes) == len(places) == tokens
        seen.update(zip(sizes, places, strict=True))
    assert len(passes) >= 5  # sizes varied
    assert max(passes) >= 7
    assert seen == {(size, place): count for size, count in passes.items() for place in range(size)}


def test_a_cut_prompt_tells_the_pass_that_gave_its_first_token(server: Vllm) -> None:
    """More tokens than one pass takes: only the last piece gives a token, and the pieces are no steps.

    Greedy, because vLLM 0.32 dies on a CPU of a seeded draw after a cut prompt ("CPU Generator does not use
    offset"), with the plugin and without.
    """

    async def what(engine: Engine) -> tuple[list[int], Finish]:
        prompt = await prompt_of(engine, 0, 5)
        return await run(
            engine,
            msgspec.structs.replace(
                prompt,
                token_ids=prompt.token_ids * 30,
                sampling=msgspec.structs.replace(prompt.sampling, temperature=0.0),
                exchange_id="long/baseline/0",
            ),
        )

    before = len(iterations(server))
    ids, finish = use(server, what)
    assert len(ids) == 5
    assert finish.facts["batch_size"].value == [1] * 5
    assert len(iterations(server)) - before > 5


def test_exchanges_carry_the_digest_and_the_steps(server: Vllm) -> None:
    async def what(engine: Engine) -> Exchange:
        probe = await engine.probe()
        prompt = await prompt_of(engine, 3, 8)
        plan = ArmPlan(
            capture_id=CaptureId("capture-1"), arm=Arm.CANDIDATE, rollout="r", tenant="t", request_id="1",
            pool="p", declared_digest=None, model=MODEL, prompt_token_ids=prompt.token_ids,
            sampling=prompt.sampling,
        )  # fmt: skip
        return await run_arm(
            FakeEndpoint(engine, probe), plan, ArmLimits(timeout_s=60, bytes=1 << 20), Sources()
        )

    exchange = use(server, what)
    assert exchange.outcome is Outcome.COMPLETED
    assert exchange.environment_digest.value == record_of(server).digest
    assert exchange.facts["batch_size"].value == [1] * 8
    assert exchange.facts["batch_place"].value == [0] * 8
    assert exchange.facts["dtype"].value == "float32"
    assert exchange.facts["processor_order"].value[0] == "allowed_token_ids"


def test_the_probe_finds_every_capability_and_marks_break_none(server: Vllm) -> None:
    probe = use(server, lambda engine: engine.probe())
    assert probe.missing == {}
    assert probe.has == frozenset(Capability)


def test_live_requests_leave_nothing(server: Vllm) -> None:
    url = server.url(DTYPE)
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 3}
    marked = {**body, "vllm_xargs": {MARK: "mine"}}
    ours = {"x-forkgate-shadow": "1", "x-request-id": "mine"}
    for sent, headers in (
        (body, {"x-request-id": "mine"}),
        (marked, {"x-request-id": "mine"}),  # a client that knows the mark and is not us
        (marked, {"x-forkgate-shadow": "0", "x-request-id": "mine"}),
    ):
        assert post(url + "/v1/completions", sent, **headers)[0] == 200
        assert batch(url, "mine")[0] == 404
    # Ours, and unmarked: it is followed, and the engine has told nothing of it.
    assert post(url + "/v1/completions", body, **ours)[0] == 200
    assert batch(url, "mine") == (200, {"record": "batch/1", "request_id": "mine", "runs": []})


@pytest.mark.parametrize("mark", [5, "", "two words", "x" * 300, ["a"], "é"])
def test_a_mark_that_is_no_id_is_refused_and_the_engine_lives(server: Vllm, mark: Any) -> None:
    url = server.url(DTYPE)
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2, "vllm_xargs": {MARK: mark}}
    status, answer, _ = post(url + "/v1/completions", body)
    assert status == 400
    assert b"vllm_xargs.forkgate_batch: must be the request's x-request-id" in answer
    assert post(url + "/v1/completions", {**body, "vllm_xargs": {MARK: "sound"}})[0] == 200


def test_several_choices_of_one_mark_are_a_clash_and_not_a_guess(server: Vllm) -> None:
    url = server.url(DTYPE)
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 6, "n": 3, "vllm_xargs": {MARK: "several"}}
    headers = {"x-forkgate-shadow": "1", "x-request-id": "several"}
    assert post(url + "/v1/completions", body, **headers)[0] == 200
    assert batch(url, "several")[1]["unknown"] == "two requests had this ID at a time"


def test_aborts_leak_nothing_and_later_answers_are_true(server: Vllm) -> None:
    url = server.url(DTYPE)

    async def what(engine: Engine) -> Finish:
        for round_ in range(3):
            prompts = [
                msgspec.structs.replace(
                    await prompt_of(engine, place, 1500), exchange_id=f"cut-{round_}-{place}/control/0"
                )
                for place in range(8)
            ]

            async def cut(prompt: Prompt) -> None:
                stream = engine.generate(prompt)
                await anext(stream)
                await stream.aclose()

            await asyncio.gather(*(cut(prompt) for prompt in prompts))
        async with asyncio.timeout(PATIENCE_S):
            while (load := await engine.load()).running + load.waiting:
                await asyncio.sleep(0.05)
        _, finish = await run(engine, await prompt_of(engine, 5, 10))
        return finish

    finish = use(server, what)
    assert finish.facts["batch_size"].value == [1] * 10
    assert finish.facts["batch_place"].value == [0] * 10
    # Told once where somebody asks after all; else forgotten (EXPIRY_S), and never more than MOST_REQUESTS.
    status, told = batch(url, "cut-2-0/control/0")
    assert (status, told["runs"][0][0]) == (200, 0)
    assert batch(url, "cut-2-0/control/0")[0] == 404
    assert EXPIRY_S <= 60
    assert MOST_REQUESTS <= 2048


# -- the wheel --------------------------------------------------------------------------------------


def test_the_wheel_names_its_entry_points(tmp_path: pathlib.Path) -> None:
    wheel = plugin_venv.build_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("/entry_points.txt"))
        groups = set(re.findall(r"^\[(vllm\.\w+)\]$", archive.read(name).decode(), re.M))
        (name,) = (one for one in archive.namelist() if one.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert groups == {"vllm.endpoint_plugins", "vllm.general_plugins", "vllm.logits_processors"}
    assert any(one.startswith("vllm") and "extra" in one for one in metadata.get_all("Requires-Dist", []))

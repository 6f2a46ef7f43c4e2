"""Engines are probed until they answer, and what they lack is said in words."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines import open_engine
from engines.base import Engine, EngineOptions, EngineUnavailable, Probe
from forkgate import fleet as module
from forkgate.config import loads
from forkgate.config.model import Config
from forkgate.fleet import Fleet, FleetError
from policies.routes import PoolTLS
from tests.support.certificates import Authority
from tests.support.engines import FakeEngine
from tests.support.fake_vllm import MODEL, FakeVllm
from tests.support.judging import TEXT, config
from tests.support.waiting import LIMIT_S, eventually


class ShyEngine(FakeEngine):
    """Answers from the ``after``-th probe on."""

    def __init__(self, base_url: str, after: int = 0, hangs: bool = False) -> None:
        super().__init__(base_url)
        self.after = after
        self.hangs = hangs
        self.probes = 0
        self.closed = False

    async def probe(self) -> Probe:
        self.probes += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.probes <= self.after:
            raise EngineUnavailable(self.base_url, "connection refused, is it running?")
        return await super().probe()

    async def close(self) -> None:
        self.closed = True


def engines_of(made: list[ShyEngine], **options: Any) -> Any:
    def open_engine(base_url: str, _options: EngineOptions, **_tls: Any) -> Engine:
        made.append(ShyEngine(base_url, **options))
        return made[-1]

    return open_engine


def test_engine_that_comes_up_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)

    async def main() -> None:
        made: list[ShyEngine] = []
        fleet = Fleet(config(tmp_path), engines_of(made, after=2))
        assert len(fleet.unprobed()) == 2
        fleet.start()
        await eventually(lambda: not fleet.unprobed())
        view = {pool["name"]: pool for pool in fleet.view("old")}
        assert view["old"]["home"]
        assert not view["new"]["home"]
        (endpoint,) = view["new"]["endpoints"]
        assert endpoint["error"] is None
        assert "token_in" in endpoint["has"]
        await fleet.close()
        assert all(engine.closed for engine in made)

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_engine_that_refuses_is_shown_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        fleet = Fleet(config(tmp_path), engines_of([], after=99))
        fleet.start()
        await eventually(lambda: all("connection refused" in line for line in fleet.unprobed()))
        assert fleet.unprobed()[0] == ("pool old: http://127.0.0.1:9001: connection refused, is it running?")
        await fleet.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_engine_that_never_answers_a_probe_is_given_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 0.01)

    async def main() -> None:
        fleet = Fleet(config(tmp_path), engines_of([], hangs=True))
        fleet.start()
        await eventually(lambda: all("no answer to a probe" in line for line in fleet.unprobed()))
        await fleet.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_shadow_endpoints_spare_the_live_ones(tmp_path: Path) -> None:
    text = TEXT.format(state_dir=tmp_path).replace(
        'endpoints: ["http://127.0.0.1:9002"]',
        'endpoints: ["http://127.0.0.1:9002"], shadow_endpoints: ["http://127.0.0.1:9102"]',
    )
    made: list[ShyEngine] = []
    fleet = Fleet(loads(text), engines_of(made))
    assert [one.url for one in fleet.endpoints("new")] == ["http://127.0.0.1:9102"]
    assert [engine.base_url for engine in made] == ["http://127.0.0.1:9001", "http://127.0.0.1:9102"]


NAME = "engine.internal"
"""What the engines' certificate says; their address is 127.0.0.1."""


def of_pools(state_dir: Path, url: str, tls: PoolTLS) -> Config:
    plain = loads(TEXT.format(state_dir=state_dir))
    return msgspec.structs.replace(
        plain,
        pools=tuple(
            msgspec.structs.replace(pool, endpoints=(url,), tls=tls, engine=EngineOptions(model=MODEL))
            for pool in plain.pools
        ),
    )


@pytest.mark.parametrize(
    ("without", "told"),
    [
        (None, None),
        ("server_name", "certificate verify failed"),
        ("ca_file", "certificate verify failed"),
        ("client_cert_file", ""),  # TLS 1.3: the server says no only after the handshake, in its own way
    ],
)
def test_engines_are_called_with_the_tls_of_their_pool(
    tmp_path: Path, without: str | None, told: str | None
) -> None:
    authority = Authority(tmp_path)
    theirs, ours = authority.issue(NAME), authority.issue("judge")
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.cert_file)
    server_tls.load_cert_chain(theirs.cert_file, theirs.key_file)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    tls = PoolTLS(
        ca_file=authority.cert_file,
        server_name=NAME,
        client_cert_file=ours.cert_file,
        client_key_file=ours.key_file,
    )
    if without is not None:
        tls = msgspec.structs.replace(tls, **{without: None})

    async def main() -> None:
        async with FakeVllm().serving(server_tls) as server:
            fleet = Fleet(of_pools(tmp_path, server.url, tls), open_engine)
            fleet.start()
            try:
                if told is None:
                    await eventually(lambda: not fleet.unprobed())
                    return
                await eventually(lambda: all("not probed yet" not in line for line in fleet.unprobed()))
                assert len(fleet.unprobed()) == 2
                assert all(told in line for line in fleet.unprobed())
                assert server.headers == []
            finally:
                await fleet.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_tls_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    tls = PoolTLS(ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(FleetError, match=r"pool old: tls: .*ca\.pem: cannot be used"):
        Fleet(of_pools(tmp_path, "https://127.0.0.1:9", tls), open_engine)


def test_bug_of_an_adapter_does_not_end_the_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)

    class Buggy(ShyEngine):
        async def probe(self) -> Probe:
            if not self.probes:
                self.probes += 1
                raise KeyError("data")
            return await super().probe()

    async def main() -> None:
        def opened(base_url: str, options: EngineOptions, **_tls: Any) -> Engine:
            return Buggy(base_url)

        fleet = Fleet(config(tmp_path), opened)
        fleet.start()
        await eventually(lambda: not fleet.unprobed())
        await fleet.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_engine_that_dies_after_its_probe_is_a_trouble_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)

    async def main() -> None:
        made: list[ShyEngine] = []
        fleet = Fleet(config(tmp_path), engines_of(made))
        fleet.start()
        await eventually(lambda: not fleet.troubles())
        (endpoint,) = fleet.endpoints("new")
        engine = next(one for one in made if one is endpoint.engine)
        engine.after = 10**9  # it is dead from now on; its next probe is due in minutes
        probes = engine.probes
        endpoint.not_answering(f"{endpoint.url}: connection refused")
        (trouble,) = fleet.troubles()
        assert trouble.startswith(f"pool new: {endpoint.url}: not answering since 2")
        assert trouble.endswith(" UTC: connection refused")
        await eventually(lambda: engine.probes > probes + 1, "it to be probed at once and again")
        (view,) = next(pool for pool in fleet.view("old") if pool["name"] == "new")["endpoints"]
        assert view["answered_s"] >= 0
        assert "not answering since" in view["trouble"]
        assert fleet.unprobed() == []  # readiness is about the start
        engine.after = 0
        await eventually(lambda: not fleet.troubles(), "it to be found again")
        await fleet.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_doubts_do_not_probe_an_engine_without_end_and_whoever_waits_for_it_does_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 10 * LIMIT_S)  # a pause that nothing but being asked ends

    async def main() -> None:
        made: list[ShyEngine] = []
        fleet = Fleet(config(tmp_path), engines_of(made))
        fleet.start()
        (endpoint,) = fleet.endpoints("new")
        await eventually(lambda: not fleet.troubles() and not endpoint.probing)
        for _ in range(100):
            endpoint.not_answering("refused")
            await asyncio.sleep(0)
        assert [engine.probes for engine in made] == [1] * len(made)
        probes = endpoint.want()
        await eventually(lambda: endpoint.probes >= probes)
        assert sum(engine.probes for engine in made) == len(made) + 1
        assert not fleet.troubles()
        await fleet.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))

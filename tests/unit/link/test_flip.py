from __future__ import annotations

import asyncio

from proxy.link.flip import Flip


def test_a_flip_without_edges_is_complete_at_once() -> None:
    flip = Flip(5, 10.0, [])
    assert flip.complete
    assert flip.report().last_s is None


def test_it_is_complete_once_the_last_edge_has_spoken_or_is_gone() -> None:
    async def main() -> None:
        flip = Flip(5, 10.0, ["a", "b", "c"])
        waiting = asyncio.create_task(flip.wait(30.0))
        await asyncio.sleep(0)
        flip.acknowledge("a", 10.25)
        flip.acknowledge("a", 99.0)  # again, on a new stream: the first one counts
        flip.acknowledge("newcomer", 10.5)
        flip.release("b")
        assert flip.report().missing == ("c",)
        assert not waiting.done()
        flip.acknowledge("c", 11.0)
        report = await waiting
        assert report.complete
        assert report.acknowledged_s == {"a": 0.25, "newcomer": 0.5, "c": 1.0}
        assert report.last_s == 1.0

    asyncio.run(main())


def test_waiting_ends_with_the_names_of_the_missing() -> None:
    report = asyncio.run(Flip(5, 10.0, ["b", "a"]).wait(0.01))
    assert not report.complete
    assert report.missing == ("a", "b")

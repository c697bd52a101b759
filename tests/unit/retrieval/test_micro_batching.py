"""Concurrent requests: searched together, answered apart, and never on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from rag_r1.retrieval.service import MicroBatcher
from rag_r1.retrieval.types import Passage


class SlowSearcher:
    """Takes ``pause_s`` a search, whatever its size; passage k of query q is "q/k"."""

    index_id, rows, encoder_name = "slow", 1000, "none"

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None

    def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        self.batches.append(list(queries))
        self.threads.add(threading.get_ident())
        time.sleep(self.pause_s)
        if self.error:
            raise self.error
        return [[Passage(k, f"{query}/{k}", -float(k)) for k in range(topk)] for query in queries]


def texts(answers: list[list[Passage]]) -> list[list[str]]:
    return [[hit.contents for hit in hits] for hits in answers]


def test_case_123_eight_requests_share_the_search_and_get_their_own_answers() -> None:
    searcher = SlowSearcher(0.2)

    async def run() -> tuple[list[list[list[Passage]]], float, int]:
        batcher = MicroBatcher(searcher)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        start = time.perf_counter()
        found = await asyncio.gather(*(batcher.search([f"q{n}", f"r{n}"], 1 + n % 3) for n in range(8)))
        elapsed_s = time.perf_counter() - start
        ticker.cancel()
        await batcher.close()
        return found, elapsed_s, ticks

    found, elapsed_s, ticks = asyncio.run(run())
    for n, answers in enumerate(found):
        assert texts(answers) == [[f"{name}{n}/{k}" for k in range(1 + n % 3)] for name in "qr"]
    assert elapsed_s < 0.6 and ticks > 5, "one by one takes 1.6 s, and a blocked loop does not tick"
    assert len(searcher.threads) == 1 and threading.get_ident() not in searcher.threads


def test_case_130_requests_that_arrive_during_a_search_are_one_batch() -> None:
    searcher = SlowSearcher(0.05)

    async def run() -> None:
        batcher = MicroBatcher(searcher, max_batch=8)
        first = asyncio.create_task(batcher.search(["first"], 1))
        await asyncio.sleep(0.02)
        await asyncio.gather(first, *(batcher.search([f"q{n}"], 1) for n in range(10)), batcher.search(["x"] * 20, 1))

    asyncio.run(run())
    assert [len(batch) for batch in searcher.batches] == [1, 8, 2, 20]


def test_an_error_reaches_its_batch_and_no_other() -> None:
    searcher = SlowSearcher()

    async def run() -> None:
        batcher = MicroBatcher(searcher)
        searcher.error = ValueError("bad")
        found = await asyncio.gather(*(batcher.search([f"q{n}"], 1) for n in range(3)), return_exceptions=True)
        assert all(isinstance(answer, ValueError) for answer in found)
        searcher.error = None
        assert texts(await batcher.search(["q"], 1)) == [["q/0"]]

    asyncio.run(run())


def test_a_client_that_leaves_takes_nobody_along() -> None:
    searcher = SlowSearcher(0.05)

    async def run() -> None:
        batcher = MicroBatcher(searcher)
        tasks = [asyncio.create_task(batcher.search([f"q{n}"], 1)) for n in range(4)]
        await asyncio.sleep(0.01)
        late = asyncio.create_task(batcher.search(["late"], 1))
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        late.cancel()
        found = await asyncio.gather(*tasks, late, return_exceptions=True)
        assert [texts(found[n]) for n in (0, 2, 3)] == [[["q0/0"]], [["q2/0"]], [["q3/0"]]]  # type: ignore[arg-type]
        assert isinstance(found[1], asyncio.CancelledError)

    asyncio.run(run())
    assert ["late"] not in searcher.batches, "what nobody waits for is not searched"


def test_a_searcher_that_loses_a_query_is_an_error_not_a_shift() -> None:
    class Lossy(SlowSearcher):
        def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
            return super().find(queries, topk)[1:]

    with pytest.raises(RuntimeError, match="2 answers to 3 queries"):
        asyncio.run(MicroBatcher(Lossy()).search(["a", "b", "c"], 1))

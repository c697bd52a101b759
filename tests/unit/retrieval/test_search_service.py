"""Concurrent requests: searched together, answered apart, and never on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from rag_r1.retrieval.cache import AnswerCache
from rag_r1.retrieval.service import Overloaded, SearchService
from rag_r1.retrieval.types import Passage


class SlowSearcher:
    """Takes ``pause_s`` a search, whatever its size; passage k of query q is "q/k"."""

    index_id, rows, encoder_name = "slow", 1000, "none"

    def __init__(self, pause_s: float = 0.0) -> None:
        self.stage_s = {"search": pause_s}
        self.pause_s = pause_s
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        self.batches.append(list(queries))
        self.threads.add(threading.get_ident())
        time.sleep(self.pause_s)
        assert self.may_go_on.wait(10)
        if self.error:
            raise self.error
        return [[Passage(k, f"{query}/{k}", -float(k)) for k in range(topk)] for query in queries]


def texts(answers: list[list[Passage]]) -> list[list[str]]:
    return [[hit.contents for hit in hits] for hits in answers]


def test_case_123_eight_requests_share_the_search_and_get_their_own_answers() -> None:
    searcher = SlowSearcher(0.2)

    async def run() -> tuple[list[list[list[Passage]]], float, int]:
        service = SearchService(searcher)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        start = time.perf_counter()
        found = await asyncio.gather(*(service.search([f"q{n}", f"r{n}"], 1 + n % 2) for n in range(8)))
        elapsed_s = time.perf_counter() - start
        ticker.cancel()
        await service.close()
        return found, elapsed_s, ticks

    found, elapsed_s, ticks = asyncio.run(run())
    for n, answers in enumerate(found):
        assert texts(answers) == [[f"{name}{n}/{k}" for k in range(1 + n % 2)] for name in "qr"]
    assert elapsed_s < 0.6 and ticks > 5, "one by one takes 1.6 s, and a blocked loop does not tick"
    assert len(searcher.threads) == 1 and threading.get_ident() not in searcher.threads


def test_case_130_requests_that_arrive_during_a_search_are_one_batch() -> None:
    searcher = SlowSearcher(0.05)

    async def run() -> None:
        service = SearchService(searcher, max_batch=8)
        first = asyncio.create_task(service.search(["first"], 1))
        await asyncio.sleep(0.02)
        await asyncio.gather(
            first, *(service.search([f"q{n}"], 1) for n in range(10)), service.search([f"x{n}" for n in range(20)], 1)
        )

    asyncio.run(run())
    assert [len(batch) for batch in searcher.batches] == [1, 8, 8, 8, 6]
    assert searcher.batches[1] == [f"q{n}" for n in range(8)], "those that wait longest go first"


def test_an_error_reaches_its_batch_and_no_other() -> None:
    searcher = SlowSearcher()

    async def run() -> None:
        service = SearchService(searcher)
        searcher.error = ValueError("bad")
        found = await asyncio.gather(*(service.search([f"q{n}"], 1) for n in range(3)), return_exceptions=True)
        assert all(isinstance(answer, ValueError) for answer in found)
        searcher.error = None
        assert texts(await service.search(["q"], 1)) == [["q/0"]]

    asyncio.run(run())


def test_a_client_that_leaves_takes_nobody_along() -> None:
    searcher = SlowSearcher()
    searcher.may_go_on.clear()

    async def run() -> None:
        service = SearchService(searcher)
        tasks = [asyncio.create_task(service.search([f"q{n}"], 1)) for n in range(4)]
        while not searcher.batches:
            await asyncio.sleep(0.001)
        late = asyncio.create_task(service.search(["late"], 1))
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        late.cancel()
        await asyncio.sleep(0)
        searcher.may_go_on.set()
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
        asyncio.run(SearchService(Lossy()).search(["a", "b", "c"], 1))


def test_a_query_in_flight_is_looked_up_once_whether_it_waits_or_runs() -> None:
    searcher = SlowSearcher(0.05)

    async def run() -> None:
        service = SearchService(searcher)
        first = asyncio.create_task(service.search(["same", "same"], 2))
        await asyncio.sleep(0.02)
        rest = await asyncio.gather(
            *(service.search(["same", f"q{n}"], 2) for n in range(5)), service.search(["q3"], 2)
        )
        assert texts(await first) == [["same/0", "same/1"]] * 2
        for n in range(5):
            assert texts(rest[n]) == [["same/0", "same/1"], [f"q{n}/0", f"q{n}/1"]]
        first_again = await service.search(["same"], 2)
        first_again[0].clear()  # a caller's list is its own
        assert texts(await service.search(["same"], 2)) == [["same/0", "same/1"]]

    asyncio.run(run())
    assert searcher.batches == [["same"], [f"q{n}" for n in range(5)], ["same"], ["same"]]


def test_a_batch_has_one_topk_so_that_answers_do_not_depend_on_company() -> None:
    searcher = SlowSearcher(0.01)

    async def run() -> None:
        service = SearchService(searcher)
        found = await asyncio.gather(*(service.search([f"q{n}"], 1 + n % 2) for n in range(6)))
        assert [len(answers[0]) for answers in found] == [1, 2] * 3

    asyncio.run(run())
    assert searcher.batches == [["q0", "q2", "q4"], ["q1", "q3", "q5"]]


def test_case_124_cached_answers_are_the_answers(tmp_path: Any) -> None:
    searcher = SlowSearcher()

    async def run() -> None:
        service = SearchService(searcher, cache=AnswerCache("slow", file=tmp_path / "answers.sqlite"))
        fresh = await service.search(["a", "b"], 2)
        assert await service.search(["b", "a", " a "], 2) == [fresh[1], fresh[0], fresh[0]]
        assert texts(await service.search(["a"], 1)) == [["a/0"]], "another topk is another question"
        await service.close()

    asyncio.run(run())
    assert searcher.batches == [["a", "b"], ["a"]]


def test_a_full_queue_refuses_with_the_time_to_come_again() -> None:
    searcher = SlowSearcher(0.1)

    async def run() -> None:
        service = SearchService(searcher, max_batch=4, max_waiting=4)
        tasks = [asyncio.create_task(service.search([f"q{n}"], 1)) for n in range(4)]
        await asyncio.sleep(0.05)  # the first four are being searched
        tasks += [asyncio.create_task(service.search([f"r{n}"], 1)) for n in range(4)]
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded) as refused:
            await service.search(["one too many"], 1)
        assert 0 < refused.value.retry_after_s < 10
        assert texts(await service.search(["r0"], 1)) == [["r0/0"]], "what is waited for already needs no place"
        assert [texts(await task)[0][0][0] for task in tasks] == ["q"] * 4 + ["r"] * 4
        assert len(await service.search([f"large{n}" for n in range(40)], 1)) == 40, "an idle service takes any request"

    asyncio.run(run())


def test_no_batches_where_none_are_wanted() -> None:
    searcher = SlowSearcher()

    async def run() -> None:
        service = SearchService(searcher, max_batch=1)
        found = await asyncio.gather(service.search(["a", "b"], 1), service.search(["c"], 1))
        assert [texts(answers) for answers in found] == [[["a/0"], ["b/0"]], [["c/0"]]]

    asyncio.run(run())
    assert searcher.batches == [["a"], ["b"], ["c"]]


def test_whitespace_makes_no_difference_with_or_without_a_cache() -> None:
    searcher = SlowSearcher(0.02)

    async def run(service: SearchService) -> None:
        found = await service.search(["who  wrote it?", " who wrote\tit? ", " \n", "Who wrote it?"], 1)
        assert texts(found) == [["who wrote it?/0"], ["who wrote it?/0"], [], ["Who wrote it?/0"]]

    asyncio.run(run(SearchService(searcher)))
    asyncio.run(run(SearchService(searcher, cache=AnswerCache("slow"))))
    assert searcher.batches == [["who wrote it?", "Who wrote it?"]] * 2

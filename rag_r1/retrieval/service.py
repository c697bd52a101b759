"""Between many requests and one searcher: a cache, shared lookups, a bounded queue, and batches.

Invariants:
- The search runs in one worker thread, so the event loop never blocks and the searcher never sees two threads.
- Queries are searched as the cache knows them, with whitespace collapsed: an answer is the same kept or found. A blank one
  has no hits and is not searched.
- A query that is being looked up already is not looked up twice; whoever waits for it gets the same answer.
- A batch holds queries of one topk, those that wait longest first, ``max_batch`` at most. An answer does not depend on who else
  asked.
- An idle service starts at once (after ``window_s``, 0 by default), a busy one gathers: load makes its own batches.
- An error reaches those who wait for that batch and no other. What nobody waits for any more is not searched.
- Beyond ``max_waiting`` queries a request is refused whole, with the time after which there should be room.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

from rag_r1.retrieval.cache import Answer, AnswerCache, Key, normalised
from rag_r1.retrieval.metrics import ServerMetrics
from rag_r1.retrieval.types import Passage, Searcher

Answers = list[list[Passage]]


class Overloaded(RuntimeError):
    """The queue is full; ``retry_after_s`` is how long it takes to empty at the present rate."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many queries are waiting: try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Lookup:
    answer: asyncio.Future[Answer]
    since: float
    waiters: int = 0


class SearchService:
    """Feeds a blocking ``Searcher`` from many coroutines of one event loop.

    Args:
        max_batch: queries searched together; 1 searches each by itself.
        window_s: how long an idle service waits for company before it searches.
        max_waiting: queries in the queue.
        cache: answers found before; None keeps none.
    """

    def __init__(
        self,
        searcher: Searcher,
        *,
        max_batch: int = 256,
        window_s: float = 0.0,
        max_waiting: int = 8_192,
        cache: AnswerCache | None = None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        if max_batch < 1 or max_waiting < 1 or window_s < 0:
            raise ValueError(
                f"max_batch and max_waiting must be at least 1 and window_s not negative, "
                f"got {max_batch}, {max_waiting}, {window_s}"
            )
        self._searcher = searcher
        self._max_batch, self._window_s, self._max_waiting = max_batch, window_s, max_waiting
        self._cache = cache
        self._metrics = metrics or ServerMetrics()
        self._waiting: OrderedDict[Key, _Lookup] = OrderedDict()
        self._running: dict[Key, _Lookup] = {}
        self._pump: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._query_s = 0.01  # running mean of the time a query takes

    async def search(self, queries: Sequence[str], topk: int) -> Answers:
        """The answers to ``queries``, in their order. Raises ``Overloaded``, or what the searcher raises."""
        asked = [normalised(query) for query in queries]
        known: dict[str, Answer] = {}
        lookups: dict[str, _Lookup] = {}
        unknown: list[str] = []
        for query in dict.fromkeys(asked):
            if not query:
                known[query] = []
            elif self._cache and (answer := self._cache.get(query, topk)) is not None:
                known[query] = answer
                self._metrics.queries.labels("cache").inc()
            elif lookup := self._running.get((query, topk)) or self._waiting.get((query, topk)):
                lookups[query] = lookup
                self._metrics.queries.labels("shared").inc()
            else:
                unknown.append(query)
        if unknown:
            # a request larger than the queue is taken when the queue is empty: else it could never be answered
            if self._waiting and len(self._waiting) + len(unknown) > self._max_waiting:
                raise Overloaded(len(self._waiting) * self._query_s)
            self._metrics.queries.labels("search").inc(len(unknown))
            lookups |= {query: self._enqueue(query, topk) for query in unknown}
        for lookup in lookups.values():
            lookup.waiters += 1
        try:
            found = await asyncio.gather(*(asyncio.shield(lookup.answer) for lookup in lookups.values()))
        finally:
            for query, lookup in lookups.items():
                lookup.waiters -= 1
                if not lookup.waiters and self._waiting.get((query, topk)) is lookup:
                    self._leave(query, topk)
        known |= dict(zip(lookups, found, strict=True))
        return [list(known[query]) for query in asked]

    async def close(self) -> None:
        """Answer what waits, then end the worker."""
        if self._pump is not None:
            await self._pump
        self._worker.shutdown(wait=True)
        if self._cache:
            self._cache.close()

    def _enqueue(self, query: str, topk: int) -> _Lookup:
        loop = asyncio.get_running_loop()
        lookup = self._waiting[query, topk] = _Lookup(loop.create_future(), perf_counter())
        # an error that nobody waits for any more is no news
        lookup.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        self._metrics.waiting.set(len(self._waiting))
        if self._pump is None:
            self._pump = loop.create_task(self._run())
        return lookup

    def _leave(self, query: str, topk: int) -> None:
        """Nobody waits for it any more: it is not searched, and its place in the queue is free."""
        del self._waiting[query, topk]
        self._metrics.waiting.set(len(self._waiting))

    async def _run(self) -> None:
        # at least one turn of the loop, so that requests which came in together are searched together
        await asyncio.sleep(self._window_s)
        try:
            while batch := self._next_batch():
                self._running = batch
                self._observe(batch)
                try:
                    await self._answer(batch)
                except Exception as error:
                    for lookup in batch.values():
                        if not lookup.answer.done():
                            lookup.answer.set_exception(error)
        finally:
            self._running = {}
            self._pump = None

    async def _answer(self, batch: dict[Key, _Lookup]) -> None:
        queries, topk = [query for query, _ in batch], next(iter(batch))[1]
        start = perf_counter()
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._worker, self._searcher.find, queries, topk)
        if len(answers) != len(queries):
            raise RuntimeError(f"the searcher gave {len(answers)} answers to {len(queries)} queries")
        self._query_s += 0.2 * ((perf_counter() - start) / len(queries) - self._query_s)
        for stage, seconds in self._searcher.stage_s.items():
            self._metrics.stage_s.labels(stage).observe(seconds)
        for lookup, answer in zip(batch.values(), answers, strict=True):
            lookup.answer.set_result(answer)
        if self._cache:
            self._cache.put(dict(zip(batch, answers, strict=True)))

    def _next_batch(self) -> dict[Key, _Lookup]:
        batch: dict[Key, _Lookup] = {}
        topk = None
        for key in list(self._waiting):
            if len(batch) == self._max_batch:
                break
            if topk in (None, key[1]):
                batch[key] = self._waiting.pop(key)
                topk = key[1]
        self._metrics.waiting.set(len(self._waiting))
        return batch

    def _observe(self, batch: dict[Key, _Lookup]) -> None:
        start = perf_counter()
        self._metrics.batch.observe(len(batch))
        for lookup in batch.values():
            self._metrics.wait_s.observe(start - lookup.since)

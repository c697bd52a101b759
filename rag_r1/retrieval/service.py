"""Micro-batching: requests that arrive while a search runs are answered by the next one, together.

Invariants:
- The search runs in one worker thread, so the event loop never blocks and the searcher never sees two threads.
- There is no waiting window: an idle service starts at once, a busy one gathers. Load makes its own batches.
- Each request gets the answers to its own queries, in its order, or the error of the batch it was in.
- A batch holds at most ``max_batch`` queries; a single larger request is a batch of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rag_r1.retrieval.types import Passage, Searcher

Answers = list[list[Passage]]


@dataclass(slots=True)
class _Request:
    queries: list[str]
    topk: int
    answer: asyncio.Future[Answers]


class MicroBatcher:
    """Feeds a blocking ``Searcher`` from many coroutines of one event loop."""

    def __init__(self, searcher: Searcher, *, max_batch: int = 256) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {max_batch}")
        self._searcher = searcher
        self._max_batch = max_batch
        self._waiting: deque[_Request] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self.batches = 0  # searches run so far

    async def search(self, queries: Sequence[str], topk: int) -> Answers:
        """The answers to ``queries``. Raises what the searcher raises."""
        if not queries:
            return []
        loop = asyncio.get_running_loop()
        request = _Request(list(queries), topk, loop.create_future())
        self._waiting.append(request)
        if self._pump is None:
            self._pump = loop.create_task(self._run())
        return await request.answer

    async def close(self) -> None:
        """Answer what waits, then end the worker."""
        if self._pump is not None:
            await self._pump
        self._worker.shutdown(wait=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while batch := self._next_batch():
                queries = [query for request in batch for query in request.queries]
                topk = max(request.topk for request in batch)
                self.batches += 1
                try:
                    answers = await loop.run_in_executor(self._worker, self._searcher.find, queries, topk)
                    if len(answers) != len(queries):
                        raise RuntimeError(f"the searcher gave {len(answers)} answers to {len(queries)} queries")
                except Exception as error:
                    for request in batch:
                        if not request.answer.done():
                            request.answer.set_exception(error)
                    continue
                position = 0
                for request in batch:
                    own = answers[position : position + len(request.queries)]
                    position += len(request.queries)
                    if not request.answer.done():  # its client may have gone
                        request.answer.set_result([hits[: request.topk] for hits in own])
        finally:
            self._pump = None

    def _next_batch(self) -> list[_Request]:
        batch: list[_Request] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].queries) <= self._max_batch):
            request = self._waiting.popleft()
            if not request.answer.done():
                batch.append(request)
                size += len(request.queries)
        return batch

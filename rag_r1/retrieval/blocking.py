"""What searchers in this process share: one search at a time, each question once, and the same for asyncio.

Invariants:
- A blank query gets an empty list and reaches no searcher; equal queries of one call are searched once.
- One ``find`` at a time, whoever calls.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from rag_r1.retrieval.types import Passage


class BlockingSearcher(ABC):
    """A ``Searcher`` and a ``Retriever``, made of one method: ``_find``, which also fills ``stage_s``."""

    index_id: str
    rows: int
    encoder_name: str

    def __init__(self) -> None:
        self.stage_s: dict[str, float] = {}
        self._lock = Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retrieval")

    @abstractmethod
    def _find(self, queries: list[str], topk: int) -> list[list[Passage]]:
        """The best passages of each query: no query is blank, none comes twice, ``topk`` is at least 1."""

    def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The ``topk`` best passages of each query, in order; a blank query gets none. Blocks."""
        if topk < 1:
            raise ValueError(f"topk must be at least 1, got {topk}")
        asked = list(dict.fromkeys(query for query in queries if query.strip()))
        with self._lock:
            answers = dict(zip(asked, self._find(asked, topk), strict=True))
        return [list(answers.get(query, ())) for query in queries]

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """``find`` in this object's own thread, so that the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self.find, list(queries), topk)

    def close(self) -> None:
        """End that thread; what the search is made of is closed by whoever opened it."""
        self._worker.shutdown(wait=True)

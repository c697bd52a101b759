"""A retriever that finds the pages of a toy world by their titles."""

from __future__ import annotations

from collections.abc import Sequence

from rag_r1.retrieval.corpus import split_page
from rag_r1.retrieval.types import Passage
from rag_r1.toyworld.world import World

PER_KIND = 24
"""Questions of each kind in the fixture `questions`."""


class ByTitle:
    """The page whose title is the query, then other pages; for any other query the first pages of the world."""

    def __init__(self, world: World) -> None:
        self.passages = {
            page["wikipedia_title"]: Passage(row, split_page(page["wikipedia_title"], page["text"])[0], 1.0)
            for row, page in enumerate(world.pages())
        }
        self.calls: list[tuple[str, ...]] = []

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        self.calls.append(tuple(queries))
        others = list(self.passages.values())[: topk + 1]
        found = []
        for query in queries:
            gold = [self.passages[query]] if query in self.passages else []
            found.append((gold + [other for other in others if other not in gold])[:topk])
        return found

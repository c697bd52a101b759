"""What retrieval is to its callers: queries in, ranked passages out, or a typed error.

Invariants:
- ``Passage.id`` is the row in the corpus, which is the global row in the index.
- ``search`` answers in the order of its queries, one list a query, best passage first.
- An empty list means that nothing was found; a failure is always a ``RetrievalError``, never an empty list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Passage:
    """One hit.

    ``id`` is a row of the corpus (0-based), ``contents`` is the text as the corpus holds it ("title   text"),
    ``score`` is the inner product of query and passage (a cosine where the encoder normalises).
    """

    id: int
    contents: str
    score: float


class RetrievalError(RuntimeError):
    """A search that failed for good: its message names the address and the cause, and says what to do."""


class RetrieverUnreachable(RetrievalError):
    """Every try ended in a transport error, a timeout, or a status that may pass (408, 429, 5xx)."""


class RetrieverRefused(RetrievalError):
    """The server will not take the request, now or later: a wrong address, a limit, a missing token."""

    status: int | None = None
    """Of the reply; None where the request could not be sent at all."""


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages: a client of the server, or the index in this process."""

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The ``topk`` best passages of each query, in the order of ``queries``; fewer where the corpus is smaller.

        Raises:
            RetrievalError: the search failed and its retries, where there are any, are used up.
        """
        ...


class Searcher(Protocol):
    """What a server serves: a search that blocks, and the names it reports in ``/health``.

    ``find`` is called from one worker thread at a time. A blank query gets an empty list.
    """

    @property
    def index_id(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def encoder_name(self) -> str: ...

    @property
    def stage_s(self) -> dict[str, float]:
        """Seconds that the last ``find`` spent in each of its stages, such as "encode" and "search"."""
        ...

    def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]: ...

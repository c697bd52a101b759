"""The client of a retrieval server, made for many trajectories that ask at once.

Invariants:
- As many requests are out at a time as there are addresses, one at each while all are up; what is asked meanwhile goes out
  together as the next one. A query that callers of one request share is sent once.
- Every caller gets the answers to its own queries, in its order, or a ``RetrievalError``; never an empty list for a
  failure, never waiting for ever.
- What fails at one address for a reason that may pass goes to the next (``transport``).
- A query that the server refuses fails alone: the request that it was in is halved until it stands by itself.

A client may be made anywhere and belongs to the event loop that first uses it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rag_r1.retrieval.transport import QueriesRefused, Transport, addresses_of
from rag_r1.retrieval.types import Passage, RetrievalError, RetrieverRefused


@dataclass(slots=True)
class _Item:
    query: str
    topk: int
    answer: asyncio.Future[list[Passage]]


class RetrievalClient:
    """A ``Retriever`` over HTTP.

    Args:
        url: of the server, as "http://host:port", or of several that serve the same index, as a list or with commas; a trailing
            "/retrieve", as in published configurations, is accepted.
        timeout_s: of one try, from connecting to the last byte.
        max_retries: tries after every address was asked once.
        max_batch: queries in one request.
        backoff_s: the first pause is random up to this, each further one up to twice as much, at most 10 s.

    Raises:
        ValueError: a url that cannot be connected to (no http, or an address to bind such as 0.0.0.0).
    """

    def __init__(
        self,
        url: str | Sequence[str],
        timeout_s: float = 60,
        max_retries: int = 3,
        max_batch: int = 256,
        *,
        backoff_s: float = 0.5,
    ) -> None:
        if timeout_s <= 0 or max_retries < 0 or max_batch < 1:
            raise ValueError(
                f"timeout_s must be positive, max_retries not negative, max_batch at least 1, "
                f"got {timeout_s}, {max_retries}, {max_batch}"
            )
        self.addresses = addresses_of(url)
        self._transport = Transport(self.addresses, timeout_s, max_retries, backoff_s)
        self._max_batch = max_batch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Item] = deque()
        self._pumps: dict[str, asyncio.Task[None]] = {}

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The ``topk`` best passages of each query, in the order of ``queries``. Raises ``RetrievalError``."""
        loop = self._own_loop()
        items = [_Item(query, topk, loop.create_future()) for query in queries]
        self._waiting.extend(items)
        for address in self.addresses if items else ():
            if address not in self._pumps:
                self._pumps[address] = loop.create_task(self._run(address))
        return list(await asyncio.gather(*(item.answer for item in items)))

    async def health(self) -> dict[str, Any]:
        """What the first server that answers says of itself: status, index_id, rows, encoder, ready.

        {} where none has such a page. Raises ``RetrievalError`` where none answers, or where two serve different indexes.
        """
        self._own_loop()
        replies = await asyncio.gather(*(self._health(address) for address in self.addresses), return_exceptions=True)
        cards = {a: reply for a, reply in zip(self.addresses, replies, strict=True) if isinstance(reply, dict)}
        if not cards:
            raise next(reply for reply in replies if isinstance(reply, BaseException))
        # who has no index_id to show has no say
        served = [(address, card["index_id"]) for address, card in cards.items() if "index_id" in card]
        for (address, index_id), (other, other_id) in pairwise(served):
            if index_id != other_id:
                raise RetrievalError(
                    f"{address} serves index {index_id} and {other} serves {other_id}: give servers of one index"
                )
        return next((card for card in cards.values() if card), {})

    async def close(self) -> None:
        """End the connections. What still waits fails with a ``RetrievalError``; the client may be used again."""
        pumps = list(self._pumps.values())
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._pumps.clear()  # a pump that is cancelled before its first step does not clean up after itself
        _fail(self._waiting, RetrievalError(f"the search at {' and '.join(self.addresses)} was given up: closed"))
        self._waiting.clear()
        await self._transport.close()
        self._loop = None

    async def __aenter__(self) -> RetrievalClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "a RetrievalClient belongs to the event loop that first used it: make one client for each loop"
            )
        return loop

    async def _health(self, address: str) -> dict[str, Any]:
        try:
            _, reply = await self._transport.request("GET", "/health", prefer=address, only=True)
        except RetrieverRefused as error:
            if error.status == 404:  # the original servers of RAG-R1 and Search-R1 have no such page
                return {}
            raise
        if not isinstance(reply, dict):
            raise _malformed(address, f"/health gave {reply!r:.80}")
        return reply

    async def _run(self, address: str) -> None:
        batch: list[_Item] = []
        try:
            while batch := self._next_batch():
                await self._answer(batch, address)
        except BaseException as error:  # a bug or the end of the client: nobody may be left waiting
            for item in [*batch, *self._waiting]:
                if not item.answer.done():
                    failure = RetrievalError(f"the search at {address} was given up: {error!r}")
                    failure.__cause__ = error
                    item.answer.set_exception(failure)
            self._waiting.clear()
            raise
        finally:
            self._pumps.pop(address, None)

    def _next_batch(self) -> list[_Item]:
        """The longest waiting items of one topk, up to ``max_batch`` different queries; the rest stays in order."""
        batch: list[_Item] = []
        later: list[_Item] = []
        asked: set[str] = set()
        while self._waiting:
            item = self._waiting.popleft()
            if item.answer.done():  # its caller was cancelled
                continue
            fits = item.query in asked or len(asked) < self._max_batch
            if not batch or (fits and item.topk == batch[0].topk):
                batch.append(item)
                asked.add(item.query)
            else:
                later.append(item)
        self._waiting.extend(later)
        return batch

    async def _answer(self, batch: list[_Item], address: str) -> None:
        queries = list(dict.fromkeys(item.query for item in batch))
        try:
            found = dict(zip(queries, await self._retrieve(queries, batch[0].topk, address), strict=True))
        except QueriesRefused as error:
            if len(queries) == 1:
                _fail(batch, error)
                return
            half = set(queries[: len(queries) // 2])
            await self._answer([item for item in batch if item.query in half], address)
            await self._answer([item for item in batch if item.query not in half], address)
        except RetrievalError as error:
            _fail(batch, error)
        else:
            for item in batch:
                if not item.answer.done():
                    item.answer.set_result(list(found[item.query]))

    async def _retrieve(self, queries: list[str], topk: int, address: str) -> list[list[Passage]]:
        body = {"queries": queries, "topk": topk, "return_scores": True}
        address, reply = await self._transport.request("POST", "/retrieve", body, prefer=address)
        try:
            found = [
                [
                    Passage(int(hit["document"]["id"]), str(hit["document"]["contents"]), float(hit["score"]))
                    for hit in hits
                ]
                for hits in reply["result"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(address, repr(error)) from error
        if len(found) != len(queries):
            raise _malformed(address, f"{len(found)} results for {len(queries)} queries")
        return found


def _malformed(address: str, what: str) -> RetrievalError:
    return RetrievalError(f"{address} does not speak the retrieval contract ({what}): is it the right server?")


def _fail(batch: Iterable[_Item], error: RetrievalError) -> None:
    for item in batch:
        if not item.answer.done():
            item.answer.set_exception(error)

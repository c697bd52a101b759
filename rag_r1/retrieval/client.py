"""The client of a retrieval server, made for many trajectories that ask at once.

Invariants:
- One request is out at a time; what is asked meanwhile goes out together as the next one. A query that several callers
  wait for is sent once.
- Every caller gets the answers to its own queries, in its order, or a ``RetrievalError``; never an empty list for a
  failure, never waiting for ever.
- Only what may pass is tried again, with growing, jittered pauses: transport errors, timeouts, 408, 429 and 5xx.
- A query that the server refuses fails alone: the request that it was in is halved until it stands by itself.

A client may be made anywhere and belongs to the event loop that first uses it.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from rag_r1.retrieval.types import Passage, RetrievalError

_PASSING_STATUS = frozenset({408, 429})  # and all from 500
_LONGEST_PAUSE_S = 10.0


class _Passing(Exception):
    """A failure that may be gone at the next try."""


class _Refused(RetrievalError):
    """The server will not take these queries; with fewer of them it might."""


@dataclass(slots=True)
class _Item:
    query: str
    topk: int
    answer: asyncio.Future[list[Passage]]


class RetrievalClient:
    """A ``Retriever`` over HTTP.

    Args:
        url: of the server, as "http://host:port"; a trailing "/retrieve", as in published configurations, is accepted.
        timeout_s: of one try, from connecting to the last byte.
        max_retries: tries after the first.
        max_batch: queries in one request.
        backoff_s: the first pause is random up to this, each further one up to twice as much, at most 10 s.

    Raises:
        ValueError: a url that cannot be connected to (no http, or an address to bind such as 0.0.0.0).
    """

    def __init__(
        self, url: str, timeout_s: float = 60, max_retries: int = 3, max_batch: int = 256, *, backoff_s: float = 0.5
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/retrieve")
        host = urlsplit(self.url).hostname
        if urlsplit(self.url).scheme not in ("http", "https") or not host:
            raise ValueError(f"retriever url {url!r} must be of the form http://host:port")
        if host in ("0.0.0.0", "::"):
            raise ValueError(f"retriever url {url!r}: {host} is an address to bind; give the name of the server's host")
        if timeout_s <= 0 or max_retries < 0 or max_batch < 1:
            raise ValueError(
                f"timeout_s must be positive, max_retries not negative, max_batch at least 1, "
                f"got {timeout_s}, {max_retries}, {max_batch}"
            )
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._max_batch = max_batch
        self._backoff_s = backoff_s
        self._use_proxies = not _is_loopback(host)
        self._waiting: deque[_Item] = deque()
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump: asyncio.Task[None] | None = None

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The ``topk`` best passages of each query, in the order of ``queries``. Raises ``RetrievalError``."""
        loop = self._own_loop()
        items = [_Item(query, topk, loop.create_future()) for query in queries]
        self._waiting.extend(items)
        if self._pump is None and items:
            self._pump = loop.create_task(self._run())
        return list(await asyncio.gather(*(item.answer for item in items)))

    async def health(self) -> dict[str, Any]:
        """What the server says of itself: status, index_id, rows, encoder, ready. Raises ``RetrievalError``."""
        self._own_loop()
        reply = await self._request("GET", "/health")
        if not isinstance(reply, dict):
            raise self._malformed(f"/health gave {reply!r:.80}")
        return reply

    async def close(self) -> None:
        """End the connection. What still waits fails with a ``RetrievalError``; the client may be used again."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        self._session = self._loop = None

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

    async def _run(self) -> None:
        batch: list[_Item] = []
        try:
            while batch := self._next_batch():
                await self._answer(batch)
        except BaseException as error:  # a bug or the end of the client: nobody may be left waiting
            for item in [*batch, *self._waiting]:
                if not item.answer.done():
                    failure = RetrievalError(f"the search at {self.url} was given up: {error!r}")
                    failure.__cause__ = error
                    item.answer.set_exception(failure)
            self._waiting.clear()
            raise
        finally:
            self._pump = None

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

    async def _answer(self, batch: list[_Item]) -> None:
        queries = list(dict.fromkeys(item.query for item in batch))
        try:
            found = dict(zip(queries, await self._retrieve(queries, batch[0].topk), strict=True))
        except _Refused as error:
            if len(queries) == 1:
                _fail(batch, error)
                return
            half = set(queries[: len(queries) // 2])
            await self._answer([item for item in batch if item.query in half])
            await self._answer([item for item in batch if item.query not in half])
        except RetrievalError as error:
            _fail(batch, error)
        else:
            for item in batch:
                if not item.answer.done():
                    item.answer.set_result(list(found[item.query]))

    async def _retrieve(self, queries: list[str], topk: int) -> list[list[Passage]]:
        body = {"queries": queries, "topk": topk, "return_scores": True}
        reply = await self._request("POST", "/retrieve", body)
        try:
            found = [
                [
                    Passage(int(hit["document"]["id"]), str(hit["document"]["contents"]), float(hit["score"]))
                    for hit in hits
                ]
                for hits in reply["result"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise self._malformed(repr(error)) from error
        if len(found) != len(queries):
            raise self._malformed(f"{len(found)} results for {len(queries)} queries")
        return found

    async def _request(self, method: str, path: str, body: object = None) -> Any:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._max_retries + 1),
            wait=wait_random_exponential(multiplier=self._backoff_s, max=_LONGEST_PAUSE_S),
            retry=retry_if_exception_type(_Passing),
        )
        try:
            return await retrying(self._try_once, method, path, body)
        except RetryError as error:
            cause = error.last_attempt.exception()
            raise RetrievalError(
                f"{self.url}{path} failed {self._max_retries + 1} times, last with: {cause}. "
                "Is the server up and reachable? Start it with: python start_retrieval.py --index DIR"
            ) from cause

    async def _try_once(self, method: str, path: str, body: object) -> Any:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=self._use_proxies)
        data = None if body is None else _encode(body)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(method, self.url + path, data=data, headers=headers) as response:
                status, content = response.status, await response.read()
        except asyncio.TimeoutError as error:
            raise _Passing(f"no answer in {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Passing(f"{type(error).__name__}: {error}") from error
        if status == 200:
            try:
                return orjson.loads(content)
            except orjson.JSONDecodeError as error:
                raise self._malformed("the reply is not JSON") from error
        told = f"status {status}: {content[:300].decode(errors='replace')}"
        if status in _PASSING_STATUS or status >= 500:
            raise _Passing(told)
        about_queries = status == 413 or (status in (400, 422) and b'"queries"' in content)
        kind = _Refused if about_queries else RetrievalError
        raise kind(f"{self.url}{path} refused the request with {told}. Check the url, and the limits of the server")

    def _malformed(self, what: str) -> RetrievalError:
        return RetrievalError(f"{self.url} does not speak the retrieval contract ({what}): is it the right server?")


def _encode(body: object) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:  # orjson says this of lone surrogates
        raise _Refused(f"a query holds text without a UTF-8 form, so it cannot be sent: {error}") from error


def _fail(batch: list[_Item], error: RetrievalError) -> None:
    for item in batch:
        if not item.answer.done():
            item.answer.set_exception(error)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

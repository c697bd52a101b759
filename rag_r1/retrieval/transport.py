"""One exchange with a retrieval server, over several addresses: tries, pauses, and what kind of error it was.

Invariants:
- Only what may pass is tried again: transport errors, timeouts, 408, 429 and 5xx. Pauses grow and are jittered; ``Retry-After``
  is a lower bound. Tries are bounded.
- An address that failed rests; meanwhile another one is asked, at once. When all rest, the one that rests least is asked.
- Whatever fails ends in a ``RetrievalError`` that names the address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Sequence
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from rag_r1.retrieval.types import RetrievalError, RetrieverRefused, RetrieverUnreachable

_PASSING_STATUS = frozenset({408, 429})  # and all from 500
_LONGEST_PAUSE_S = 10.0
_REST_S = 2.0
_TOKEN_VARIABLE = "RAG_R1_RETRIEVAL_TOKEN"


class QueriesRefused(RetrieverRefused):
    """The server will not take these queries; with fewer of them it might."""


class _Passing(Exception):
    """A failure that may be gone at the next try."""

    def __init__(self, address: str, told: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{address}: {told}")
        self.retry_after_s = retry_after_s


def addresses_of(url: str | Sequence[str]) -> tuple[str, ...]:
    """Server addresses without a trailing ``/retrieve``; one string may hold several, with commas.

    Raises ``ValueError`` for one that cannot be connected to (no http, or an address to bind such as 0.0.0.0).
    """
    given = [part.strip() for text in ([url] if isinstance(url, str) else url) for part in text.split(",")]
    if not any(given):
        raise ValueError("retriever url is empty: give http://host:port of at least one server")
    for address in given:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"retriever url {address!r} must be of the form http://host:port")
        if parts.hostname in ("0.0.0.0", "::"):
            raise ValueError(
                f"retriever url {address!r}: {parts.hostname} is an address to bind; give the name of the server's host"
            )
    return tuple(dict.fromkeys(address.rstrip("/").removesuffix("/retrieve") for address in given))


class Transport:
    """Requests to ``addresses``. The token of ``RAG_R1_RETRIEVAL_TOKEN`` goes along where the variable is set."""

    def __init__(self, addresses: tuple[str, ...], timeout_s: float, max_retries: int, backoff_s: float) -> None:
        self.addresses = addresses
        self._timeout_s = timeout_s
        self._tries = max_retries + len(addresses)
        self._pause = wait_random_exponential(multiplier=backoff_s, max=_LONGEST_PAUSE_S)
        self._rests_until = dict.fromkeys(addresses, 0.0)
        token = os.environ.get(_TOKEN_VARIABLE)
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # a proxy never reaches a server on this machine, and sometimes answers in its place
        self._use_proxies = not any(_is_loopback(urlsplit(address).hostname or "") for address in addresses)
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, path: str, body: object = None, *, prefer: str, only: bool = False) -> Any:
        """The parsed JSON of a reply with status 200, from ``prefer`` or, unless ``only``, from another address.

        Raises:
            RetrieverUnreachable: every try failed.
            QueriesRefused: 413, or 400 and 422 about the queries.
            RetrieverRefused: any other status.
            RetrievalError: a reply that is not JSON.
        """
        data = None if body is None else _encode(body)
        asked = [prefer] if only else [prefer, *(address for address in self.addresses if address != prefer)]

        def pause_s(state: RetryCallState) -> float:
            failure = state.outcome.exception() if state.outcome else None
            if any(self._rests_until[address] <= monotonic() for address in asked):
                return 0.0
            return max(self._pause(state), min(getattr(failure, "retry_after_s", 0.0), _LONGEST_PAUSE_S))

        tries = self._tries - (len(self.addresses) - 1 if only else 0)
        retrying = AsyncRetrying(stop=stop_after_attempt(tries), wait=pause_s, retry=retry_if_exception_type(_Passing))
        try:
            return await retrying(self._try_once, method, path, data, asked)
        except RetryError as error:
            cause = error.last_attempt.exception()
            raise RetrieverUnreachable(
                f"{' and '.join(address + path for address in asked)} failed {tries} times, last with: {cause}. "
                "Is the server up and reachable? Start it with: python start_retrieval.py --index DIR"
            ) from cause

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        self._session = None

    async def _try_once(self, method: str, path: str, data: bytes | None, asked: list[str]) -> Any:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=self._use_proxies)
        now = monotonic()
        address = min(
            asked, key=lambda each: max(self._rests_until[each] - now, 0.0)
        )  # the first of those that rest least
        try:
            async with self._session.request(method, address + path, data=data, headers=self._headers) as response:
                status, content, headers = response.status, await response.read(), response.headers
        except asyncio.TimeoutError as error:
            raise self._rest(address, f"no answer in {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._rest(address, f"{type(error).__name__}: {error}") from error
        if status == 200:
            try:
                return orjson.loads(content)
            except orjson.JSONDecodeError as error:
                raise RetrievalError(
                    f"{address} does not speak the retrieval contract (the reply is not JSON): is it the right server?"
                ) from error
        told = f"status {status}: {content[:300].decode(errors='replace')}"
        if status in _PASSING_STATUS or status >= 500:
            raise self._rest(address, told, _seconds(headers.get("Retry-After")))
        about_queries = status == 413 or (status in (400, 422) and b'"queries"' in content)
        kind = QueriesRefused if about_queries else RetrieverRefused
        advice = "Check the url, and the limits of the server"
        if status == 401:
            advice = f"Set {_TOKEN_VARIABLE} to the token that the server was started with"
        refusal = kind(f"{address}{path} refused the request with {told}. {advice}")
        refusal.status = status
        raise refusal

    def _rest(self, address: str, told: str, retry_after_s: float = 0.0) -> _Passing:
        self._rests_until[address] = monotonic() + min(max(_REST_S, retry_after_s), _LONGEST_PAUSE_S)
        return _Passing(address, told, retry_after_s)


def _encode(body: object) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:  # orjson says this of lone surrogates
        raise QueriesRefused(f"a query holds text without a UTF-8 form, so it cannot be sent: {error}") from error


def _seconds(header: str | None) -> float:
    return float(header) if header and header.isdecimal() else 0.0


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

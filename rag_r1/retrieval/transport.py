"""One exchange with a retrieval server, over several addresses: tries, pauses, and what kind of error it was.

Invariants:
- Only what may pass is tried again: transport errors, timeouts, 408, 429 and 5xx. Pauses grow and are jittered; the
  ``Retry-After`` of the address to be asked is a lower bound, up to the longest pause. Tries are bounded.
- An address that failed rests as long as the failure took, but at least a moment: one that hangs is
  waited for half of the time at most. Meanwhile another one is asked, at once. When all rest, the one that rests least is asked.
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
TOKEN_VARIABLE = "RAG_R1_RETRIEVAL_TOKEN"


class QueriesRefused(RetrieverRefused):
    """The server will not take these queries; with fewer of them it might."""


class _Passing(Exception):
    """A failure that may be gone at the next try."""


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
        self._not_before = dict.fromkeys(addresses, 0.0)  # what Retry-After asked for
        token = token_from_environment()
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # a proxy never reaches a server on this machine, and sometimes answers in its place
        self._use_proxies = not any(is_loopback(urlsplit(address).hostname or "") for address in addresses)
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, body: object = None, *, prefer: str, only: bool = False
    ) -> tuple[str, Any]:
        """Who answered with status 200, and its parsed JSON: ``prefer`` or, unless ``only``, another address.

        Raises:
            RetrieverUnreachable: every try failed.
            QueriesRefused: 413, or 400 and 422 about the queries.
            RetrieverRefused: any other status.
            RetrievalError: a reply that is not JSON.
        """
        data = None if body is None else _encode(body)
        asked = [prefer] if only else [prefer, *(address for address in self.addresses if address != prefer)]

        def pause_s(state: RetryCallState) -> float:
            address, now = self._choose(asked), monotonic()
            if self._rests_until[address] <= now:
                return 0.0
            return max(self._pause(state), self._not_before[address] - now)

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

    def _choose(self, asked: list[str]) -> str:
        """The first of those that rest least."""
        now = monotonic()
        return min(asked, key=lambda address: max(self._rests_until[address] - now, 0.0))

    async def _try_once(self, method: str, path: str, data: bytes | None, asked: list[str]) -> tuple[str, Any]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=self._use_proxies)
        address, start = self._choose(asked), monotonic()
        try:
            async with self._session.request(method, address + path, data=data, headers=self._headers) as response:
                status, content, headers = response.status, await response.read(), response.headers
        except asyncio.TimeoutError as error:
            raise self._rest(address, start, f"no answer in {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._rest(address, start, f"{type(error).__name__}: {error}") from error
        if status == 200:
            try:
                return address, orjson.loads(content)
            except orjson.JSONDecodeError as error:
                raise RetrievalError(
                    f"{address} does not speak the retrieval contract (the reply is not JSON): is it the right server?"
                ) from error
        told = f"status {status}: {content[:300].decode(errors='replace')}"
        if status in _PASSING_STATUS or status >= 500:
            raise self._rest(address, start, told, _seconds(headers.get("Retry-After")))
        about_queries = status == 413 or (status in (400, 422) and b'"queries"' in content)
        kind = QueriesRefused if about_queries else RetrieverRefused
        advice = "Check the url, and the limits of the server"
        if status == 401:
            advice = f"Set {TOKEN_VARIABLE} to the token that the server was started with"
        refusal = kind(f"{address}{path} refused the request with {told}. {advice}")
        refusal.status = status
        raise refusal

    def _rest(self, address: str, start: float, told: str, retry_after_s: float = 0.0) -> _Passing:
        now = monotonic()
        self._not_before[address] = now + min(retry_after_s, _LONGEST_PAUSE_S)
        self._rests_until[address] = max(now + max(_REST_S, now - start), self._not_before[address])
        return _Passing(f"{address}: {told}")


def _encode(body: object) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:  # orjson says this of lone surrogates
        raise QueriesRefused(f"a query holds text without a UTF-8 form, so it cannot be sent: {error}") from error


def _seconds(header: str | None) -> float:
    return float(header) if header and header.isdecimal() else 0.0


def token_from_environment() -> str | None:
    """The token that servers ask for and clients send; an empty variable is none."""
    return os.environ.get(TOKEN_VARIABLE) or None


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""One client, several servers: who is asked, who rests, and what is told when none answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web

from rag_r1.retrieval import RetrievalClient, RetrievalError, RetrieverRefused, RetrieverUnreachable

Handler = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


async def good(body: dict[str, Any]) -> web.StreamResponse:
    hits = [[{"document": {"id": 0, "contents": query}, "score": 1}] for query in body["queries"]]
    return web.json_response({"result": hits})


async def broken(body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=500, text="broken")


def with_servers(
    handlers: list[Handler | None],
    use: Callable[[list[str], Counter[int]], Coroutine[Any, Any, None]],
    health: list[Any] | None = None,
) -> Counter[int]:
    """Run ``use(urls, requests by server)``; None is an address where nobody listens."""
    asked: Counter[int] = Counter()

    def app(number: int, handler: Handler) -> web.Application:
        async def retrieve(request: web.Request) -> web.StreamResponse:
            asked[number] += 1
            return await handler(await request.json())

        async def card(request: web.Request) -> web.StreamResponse:
            if health is None or health[number] is None:
                return web.Response(status=404)
            return web.json_response({"index_id": health[number], "ready": True})

        made = web.Application()
        made.router.add_post("/retrieve", retrieve)
        made.router.add_get("/health", card)
        return made

    async def run() -> None:
        runners, urls = [], []
        for number, handler in enumerate(handlers):
            if handler is None:
                urls.append("http://127.0.0.1:9")
                continue
            runners.append(web.AppRunner(app(number, handler)))
            await runners[-1].setup()
            await web.TCPSite(runners[-1], "127.0.0.1", 0, shutdown_timeout=0.1).start()
            urls.append(f"http://127.0.0.1:{runners[-1].addresses[0][1]}")
        try:
            await use(urls, asked)
        finally:
            for runner in runners:
                await runner.cleanup()

    asyncio.run(run())
    return asked


async def ask(client: RetrievalClient, count: int) -> None:
    found = await asyncio.gather(*(client.search([f"q{n}"], 1) for n in range(count)))
    assert [answers[0][0].contents for answers in found] == [f"q{n}" for n in range(count)]


def test_servers_share_the_work() -> None:
    async def slow(body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return await good(body)

    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(",".join(urls), max_batch=4) as client:
            await ask(client, 32)

    asked = with_servers([slow, slow], use)
    assert asked[0] == asked[1] == 4, "one request at each address at a time"


@pytest.mark.parametrize("bad", [broken, None])
def test_what_fails_at_one_address_goes_to_the_next_at_once(bad: Handler | None) -> None:
    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient([f"{url}/retrieve" for url in urls], max_batch=4, backoff_s=30) as client:
            start = time.monotonic()
            await ask(client, 64)
            assert time.monotonic() - start < 5, "no pause while another address is up"

    asked = with_servers([bad, good], use)
    assert asked[1] == 16 and asked[0] <= 2, "an address that failed rests"


def test_an_address_that_was_down_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_r1.retrieval.transport._REST_S", 0.05)
    failures = 1

    async def recovering(body: dict[str, Any]) -> web.StreamResponse:
        nonlocal failures
        failures -= 1
        return await (broken if failures >= 0 else good)(body)

    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls, max_batch=4) as client:
            await ask(client, 8)
            await asyncio.sleep(0.1)
            await ask(client, 32)

    asked = with_servers([recovering, good], use)
    assert asked[0] > 1 and asked[1] > 1


def test_nobody_answers_names_every_address_and_the_last_cause() -> None:
    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls, max_retries=1, backoff_s=0.01) as client:
            with pytest.raises(RetrieverUnreachable) as failed:
                await client.search(["q"], 1)
        assert all(url in str(failed.value) for url in urls) and "failed 3 times" in str(failed.value)

    assert with_servers([broken, None], use)[0] >= 1


def test_retry_after_is_waited_for() -> None:
    times: list[float] = []

    async def busy(body: dict[str, Any]) -> web.StreamResponse:
        times.append(time.monotonic())
        if len(times) == 1:
            return web.Response(status=503, headers={"Retry-After": "1"})
        return await good(body)

    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls, backoff_s=0.001) as client:
            await ask(client, 1)

    with_servers([busy], use)
    assert times[1] - times[0] >= 0.99


def test_retry_after_of_one_does_not_hold_up_another() -> None:
    """Both are busy: the one that asked for a second is asked again after a second, whatever the other asked for."""
    times: list[float] = []

    def busy(retry_after_s: int) -> Handler:
        async def handler(body: dict[str, Any]) -> web.StreamResponse:
            times.append(time.monotonic())
            if len(times) <= 2:
                return web.Response(status=503, headers={"Retry-After": str(retry_after_s)})
            return await good(body)

        return handler

    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls, backoff_s=0.001, max_batch=1) as client:
            await asyncio.wait_for(ask(client, 1), 5)

    assert with_servers([busy(1), busy(9)], use) == {0: 2, 1: 1}
    assert times[2] - times[0] >= 0.99


def test_an_address_that_hangs_rests_as_long_as_it_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_r1.retrieval.transport._REST_S", 0.0)

    async def hangs(body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(30)
        return await good(body)

    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls, timeout_s=0.5, max_batch=1) as client:
            await ask(client, 2)
            await ask(client, 2)

    assert with_servers([hangs, good], use) == {0: 1, 1: 4}


def test_a_reply_that_is_not_the_contract_names_who_gave_it() -> None:
    async def odd(body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"found": []})

    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls) as client:
            with pytest.raises(RetrievalError, match=f"{urls[1]} does not speak the retrieval contract"):
                await client.search(["q"], 1)

    with_servers([broken, odd], use)


def test_a_refusal_is_not_carried_to_another_address() -> None:
    async def refusing(body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=404, text="not here")

    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls[0]) as client:
            with pytest.raises(RetrieverRefused, match="404: not here"):
                await client.search(["q"], 1)

    assert with_servers([refusing, good], use) == {0: 1}


def test_health_of_several() -> None:
    async def use(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls, max_retries=0) as client:
            assert (await client.health())["index_id"] == "a"
        async with RetrievalClient([*urls, "http://127.0.0.1:9"], max_retries=0) as client:
            assert (await client.health())["index_id"] == "a", "who does not answer has no say"

    async def differ(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls, max_retries=0) as client:
            with pytest.raises(RetrievalError, match=r"serves index a and .* serves b"):
                await client.health()

    async def none(urls: list[str], asked: Counter[int]) -> None:
        async with RetrievalClient(urls) as client:
            assert await client.health() == {}, "the original servers have no such page"

    with_servers([good, good], use, ["a", "a"])
    with_servers([good, good], use, [None, "a"])
    with_servers([good, good], differ, ["a", "b"])
    with_servers([good], none)

"""The client against a scripted server: batching, retries, typed errors, and nobody left waiting."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web

from rag_r1.retrieval import RetrievalClient, RetrievalError, Retriever, RetrieverRefused

Handler = Callable[[dict[str, Any], int], Awaitable[web.StreamResponse]]


def good(body: dict[str, Any]) -> web.Response:
    """Passage k of query q is "q/k"."""
    hits = [
        [{"document": {"id": k, "contents": f"{q}/{k}"}, "score": -k} for k in range(body["topk"])]
        for q in body["queries"]
    ]
    return web.json_response({"result": hits})


def with_server(
    handler: Handler, use: Callable[[str, list[dict[str, Any]]], Coroutine[Any, Any, None]]
) -> list[dict[str, Any]]:
    """Run ``use(url, requests)`` against a server that answers by ``handler(body, number of the request)``."""
    requests: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append(await request.json())
        return await handler(requests[-1], len(requests))

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/retrieve", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
        await site.start()
        try:
            await use(f"http://127.0.0.1:{runner.addresses[0][1]}", requests)
        finally:
            await runner.cleanup()

    asyncio.run(run())
    return requests


def contents(answers: Any) -> list[list[str]]:
    return [[hit.contents for hit in hits] for hits in answers]


async def answer_at_once(body: dict[str, Any], number: int) -> web.StreamResponse:
    return good(body)


async def answer_slowly(body: dict[str, Any], number: int) -> web.StreamResponse:
    await asyncio.sleep(0.05)
    return good(body)


def test_calls_that_wait_go_out_as_one_request() -> None:
    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url) as client:
            assert isinstance(client, Retriever)
            first = asyncio.create_task(client.search(["first"], 2))
            await asyncio.sleep(0.02)
            rest = await asyncio.gather(*(client.search([f"q{n}", "same", f"r{n}"], 2) for n in range(50)))
            assert contents(await first) == [["first/0", "first/1"]]
            for n, answers in enumerate(rest):
                assert contents(answers) == [[f"{q}/{k}" for k in range(2)] for q in (f"q{n}", "same", f"r{n}")]

    requests = with_server(answer_slowly, use)
    assert [len(request["queries"]) for request in requests] == [1, 101], "and the query that all share goes once"
    assert all(request["return_scores"] is True for request in requests)


def test_requests_are_split_by_topk_and_at_max_batch_in_order() -> None:
    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url, max_batch=4) as client:
            wide, one, three = await asyncio.gather(
                client.search([f"w{n}" for n in range(10)], 1), client.search(["x"], 1), client.search(["y"], 3)
            )
            assert contents(wide) == [[f"w{n}/0"] for n in range(10)] and contents(one) == [["x/0"]]
            assert contents(three) == [["y/0", "y/1", "y/2"]]
            assert await client.search([], 3) == []

    requests = with_server(answer_at_once, use)
    assert [(len(request["queries"]), request["topk"]) for request in requests] == [(4, 1), (4, 1), (3, 1), (1, 3)]


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_case_128_what_may_pass_is_tried_again(status: int) -> None:
    async def handler(body: dict[str, Any], number: int) -> web.StreamResponse:
        return web.Response(status=status) if number < 3 else good(body)

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url, backoff_s=0.01) as client:
            assert contents(await client.search(["q"], 1)) == [["q/0"]]

    assert len(with_server(handler, use)) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
def test_case_128_what_will_not_pass_is_not(status: int) -> None:
    async def handler(body: dict[str, Any], number: int) -> web.StreamResponse:
        return web.Response(status=status, text="no")

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url, backoff_s=0.01) as client:
            with pytest.raises(RetrievalError, match=f"{url}/retrieve refused .*status {status}: no"):
                await client.search(["a", "b"], 1)

    assert len(with_server(handler, use)) == 1


def test_case_128_a_hang_ends_in_a_typed_error_and_the_client_lives_on() -> None:
    async def handler(body: dict[str, Any], number: int) -> web.StreamResponse:
        if number <= 2:
            await asyncio.sleep(30)
        return good(body)

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url, timeout_s=0.1, max_retries=1, backoff_s=0.01) as client:
            start = time.perf_counter()
            found = await asyncio.gather(*(client.search([q], 1) for q in "abc"), return_exceptions=True)
            assert time.perf_counter() - start < 2
            assert all(isinstance(error, RetrievalError) for error in found)
            assert "failed 2 times" in str(found[0]) and "no answer in 0.1 s" in str(found[0])
            assert contents(await client.search(["q"], 1)) == [["q/0"]]

    assert len(with_server(handler, use)) == 3


def test_a_dropped_connection_is_tried_again() -> None:
    async def broken(body: dict[str, Any], number: int) -> web.StreamResponse:
        if number == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # aiohttp closes the connection without a reply
            await asyncio.sleep(0)
        return good(body)

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url, backoff_s=0.01) as client:
            assert contents(await client.search(["q"], 1)) == [["q/0"]]

    assert len(with_server(broken, use)) == 2


def test_case_129_no_server_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def run() -> None:
        async with RetrievalClient(f"http://127.0.0.1:{port}", max_retries=1, backoff_s=0.01) as client:
            for call in (client.health(), client.search(["q"], 1)):
                with pytest.raises(RetrievalError, match=rf"127\.0\.0\.1:{port}/.* Start it with: python start_retri"):
                    await call

    asyncio.run(run())


def test_case_129_proxies_are_ignored_for_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url, max_retries=0) as client:
            assert contents(await client.search(["q"], 1)) == [["q/0"]]
        async with RetrievalClient("http://retriever.invalid:8000", max_retries=0) as client:
            with pytest.raises(RetrievalError, match=r"127\.0\.0\.1:9"):
                await client.search(["q"], 1)

    assert len(with_server(answer_at_once, use)) == 1


@pytest.mark.parametrize("url", ["http://0.0.0.0:8000", "127.0.0.1:8000", "ftp://host", "http://", "http://[::]:1"])
def test_case_129_urls_that_cannot_work_are_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="retriever url"):
        RetrievalClient(url)


def test_a_refused_query_fails_alone() -> None:
    async def handler(body: dict[str, Any], number: int) -> web.StreamResponse:
        if "long" in body["queries"]:
            row = body["queries"].index("long")
            detail = [{"loc": ["body", "queries", row], "msg": "at most 9 characters"}]
            return web.Response(status=422, text=json.dumps({"detail": detail}))
        return good(body)

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url) as client:
            calls = [[f"q{n}"] for n in range(16)]
            calls[5] = ["a", "long"]
            found = await asyncio.gather(*(client.search(call, 1) for call in calls), return_exceptions=True)
            for n, answers in enumerate(found):
                if n == 5:
                    assert isinstance(answers, RetrievalError) and "at most 9 characters" in str(answers)
                else:
                    assert contents(answers) == [[f"q{n}/0"]]

    assert len(with_server(handler, use)) <= 2 * 5 + 1, "the request is halved, not sent query by query"


def test_a_topk_that_is_refused_is_not_asked_again_in_halves() -> None:
    async def handler(body: dict[str, Any], number: int) -> web.StreamResponse:
        return web.Response(status=422, text=json.dumps({"detail": [{"loc": ["body", "topk"], "msg": "too many"}]}))

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url) as client:
            with pytest.raises(RetrievalError, match="too many"):
                await client.search([f"q{n}" for n in range(64)], 1000)

    assert len(with_server(handler, use)) == 1


def test_text_without_a_utf8_form_fails_alone() -> None:
    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url) as client:
            bad, fine = await asyncio.gather(
                client.search(["\ud800"], 1), client.search(["q"], 1), return_exceptions=True
            )
            assert isinstance(bad, RetrievalError) and "UTF-8" in str(bad) and contents(fine) == [["q/0"]]

    with_server(answer_at_once, use)


@pytest.mark.parametrize(
    "reply", ["<html>", "[]", '{"result": 3}', '{"result": []}', '{"result": [[{"id": 1, "contents": "x"}]]}']
)
def test_what_is_not_the_contract_is_told_as_such(reply: str) -> None:
    async def handler(body: dict[str, Any], number: int) -> web.StreamResponse:
        return web.Response(text=reply, content_type="application/json")

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url) as client:
            with pytest.raises(RetrievalError, match="does not speak the retrieval contract"):
                await client.search(["q"], 1)

    assert len(with_server(handler, use)) == 1


def test_a_cancelled_caller_takes_nobody_along() -> None:
    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        async with RetrievalClient(url) as client:
            tasks = [asyncio.create_task(client.search([f"q{n}"], 1)) for n in range(3)]
            await asyncio.sleep(0.02)
            waits = asyncio.create_task(client.search(["never asked"], 1))
            await asyncio.sleep(0)
            for task in (tasks[1], waits):
                task.cancel()
            assert [contents(await tasks[n]) for n in (0, 2)] == [[["q0/0"]], [["q2/0"]]]

    assert [request["queries"] for request in with_server(answer_slowly, use)] == [["q0", "q1", "q2"]]


def test_close_fails_what_waits_and_the_client_can_be_used_again() -> None:
    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        client = RetrievalClient(url)
        tasks = [asyncio.create_task(client.search([f"q{n}"], 1 + n % 2)) for n in range(4)]
        await asyncio.sleep(0.02)
        await client.close()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 1)
        assert all(isinstance(error, RetrievalError) for error in found)
        assert contents(await client.search(["q"], 1)) == [["q/0"]]
        await client.close()

    with_server(answer_slowly, use)


def test_close_before_the_first_request_is_out_leaves_nobody_waiting() -> None:
    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        client = RetrievalClient(url)
        task = asyncio.create_task(client.search(["q"], 1))
        await asyncio.sleep(0)  # the search is queued, and its request not yet made
        await client.close()
        with pytest.raises(RetrievalError, match="given up"):
            await asyncio.wait_for(task, 2)
        assert contents(await asyncio.wait_for(client.search(["r"], 1), 2)) == [["r/0"]]
        await client.close()

    assert len(with_server(answer_at_once, use)) == 1


@pytest.mark.parametrize("token", ["secret", None])
def test_the_token_goes_along_where_it_is_set(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    seen: list[str | None] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return good(await request.json()) if seen[-1] else web.Response(status=401, text="who are you?")

    async def use() -> None:
        app = web.Application()
        app.router.add_post("/retrieve", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        async with RetrievalClient(f"http://127.0.0.1:{runner.addresses[0][1]}", backoff_s=0.01) as client:
            if token:
                assert contents(await client.search(["q"], 1)) == [["q/0"]]
            else:
                with pytest.raises(RetrieverRefused, match=r"who are you.*Set RAG_R1_RETRIEVAL_TOKEN") as failed:
                    await client.search(["a", "b"], 1)
                assert failed.value.status == 401
        await runner.cleanup()

    if token:
        monkeypatch.setenv("RAG_R1_RETRIEVAL_TOKEN", token)
    else:
        monkeypatch.delenv("RAG_R1_RETRIEVAL_TOKEN", raising=False)
    asyncio.run(use())
    assert seen == ["Bearer secret" if token else None]


def test_made_outside_a_loop_and_used_from_one() -> None:
    client: RetrievalClient | None = None

    async def use(url: str, requests: list[dict[str, Any]]) -> None:
        nonlocal client
        client = RetrievalClient(url)
        await client.search(["q"], 1)

    with_server(answer_at_once, use)
    assert client is not None
    outside = RetrievalClient("http://127.0.0.1:9", max_retries=0)
    with pytest.raises(RetrievalError):
        asyncio.run(outside.search(["q"], 1))
    with pytest.raises(RuntimeError, match="one client for each loop"):
        asyncio.run(client.search(["q"], 1))
    with suppress(RuntimeError):
        asyncio.run(client.close())

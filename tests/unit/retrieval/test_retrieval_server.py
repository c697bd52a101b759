"""The server over real HTTP: its schema under fire, who may ask, what happens under load, and what it tells of itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from rag_r1.retrieval import Limits, LocalRetriever, Passage, RetrievalClient, RetrieverRefused, create_app
from rag_r1.retrieval.cache import AnswerCache


@pytest.fixture
def retriever(build: Callable[..., Path], hash_encoder: Any) -> LocalRetriever:
    return LocalRetriever.open(build(), hash_encoder())


class Gate:
    """Searches when the gate is open."""

    index_id, rows, encoder_name = "gate", 1, "none"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.stage_s = {"search": 0.25}

    def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        assert self.gate.wait(10)
        return [[Passage(0, query, 1.0)] for query in queries]


@pytest.mark.timeout(100)
@pytest.mark.parametrize("token", [None, "secret"])
def test_schemathesis_finds_nothing(retriever: LocalRetriever, server: Any, token: str | None) -> None:
    app = create_app(retriever, Limits(max_queries=8, max_topk=9, max_query_chars=40), token=token)
    with server(app) as url:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
        command += [
            "--checks",
            "all",
            "--max-examples",
            "40",
            "--seed",
            "7",
            "--no-color",
            "--suppress-health-check",
            "all",
        ]
        command += ["-H", f"Authorization: Bearer {token}"] if token else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]
    assert "No issues found" in done.stdout


def test_the_schema_tells_the_limits(retriever: LocalRetriever, server: Any) -> None:
    with server(create_app(retriever, Limits(max_queries=8, max_topk=9, max_query_chars=40))) as url:
        schema = httpx.get(f"{url}/openapi.json").json()["components"]["schemas"]["RetrieveRequest"]["properties"]
    assert schema["queries"]["maxItems"] == 8 and schema["queries"]["items"]["maxLength"] == 40
    assert {"minimum": 1, "maximum": 9, "type": "integer"} in schema["topk"]["anyOf"]


def test_with_a_token_only_those_who_have_it_are_answered(
    retriever: LocalRetriever, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(url: str) -> Any:
        async with RetrievalClient(url) as client:
            return await client.search(["compiler"], 1)

    with server(create_app(retriever, token="s3cret")) as url:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            for reply in (
                httpx.post(f"{url}/retrieve", json={"queries": ["a"]}, headers=header),
                *(httpx.get(f"{url}{path}", headers=header) for path in ("/metrics", "/docs", "/openapi.json")),
            ):
                assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
        assert httpx.get(f"{url}/health").status_code == 200
        for path in ("/metrics", "/docs", "/openapi.json"):
            assert httpx.get(f"{url}{path}", headers={"Authorization": "Bearer s3cret"}).status_code == 200
        monkeypatch.delenv("RAG_R1_RETRIEVAL_TOKEN", raising=False)
        with pytest.raises(RetrieverRefused, match="Set RAG_R1_RETRIEVAL_TOKEN to the token"):
            asyncio.run(ask(url))
        monkeypatch.setenv("RAG_R1_RETRIEVAL_TOKEN", "s3cret")
        assert asyncio.run(ask(url)) == retriever.find(["compiler"], 1)


def test_a_full_queue_is_503_with_a_time_and_the_client_comes_again(server: Any) -> None:
    gate = Gate()

    async def run(url: str) -> None:
        async with httpx.AsyncClient(timeout=20) as http, RetrievalClient(url, backoff_s=0.01) as client:
            posts = []
            for n, told in enumerate(["batch_queries_count 1.0", "queries_waiting 1.0", "queries_waiting 2.0"]):
                posts.append(asyncio.create_task(http.post(f"{url}/retrieve", json={"queries": [f"q{n}"]})))
                while f"retrieval_{told}" not in (await http.get(f"{url}/metrics")).text:
                    await asyncio.sleep(0.01)  # one is searched, then two wait
            full = await http.post(f"{url}/retrieve", json={"queries": ["more"]})
            assert full.status_code == 503 and 1 <= int(full.headers["retry-after"]) <= 10
            patient = asyncio.create_task(client.search(["patient"], 1))
            await asyncio.sleep(0.1)
            gate.gate.set()
            assert [(await post).json()["result"][0][0]["contents"] for post in posts] == ["q0", "q1", "q2"]
            assert (await patient)[0][0].contents == "patient"

    with server(create_app(gate, Limits(max_batch=1, max_waiting=2))) as url:
        asyncio.run(run(url))


def test_the_metrics_count_what_happened(server: Any) -> None:
    gate = Gate()
    gate.gate.set()
    with server(create_app(gate, cache=AnswerCache("gate"))) as url:
        for queries in (["a", "b", "a"], ["a"], ["c"], []):
            assert httpx.post(f"{url}/retrieve", json={"queries": queries}).status_code == 200
        assert httpx.post(f"{url}/retrieve", json={"queries": 7}).status_code == 422
        assert httpx.get(f"{url}/no/such/page").status_code == 404
        told = httpx.get(f"{url}/metrics")
    assert told.headers["content-type"].startswith("text/plain")
    for line in (
        'retrieval_requests_total{path="/retrieve",status="200"} 4.0',
        'retrieval_requests_total{path="/retrieve",status="422"} 1.0',
        'retrieval_requests_total{path="other",status="404"} 1.0',
        'retrieval_queries_total{source="search"} 3.0',
        'retrieval_queries_total{source="cache"} 1.0',
        "retrieval_batch_queries_sum 3.0",
        "retrieval_batch_queries_count 2.0",
        'retrieval_stage_seconds_sum{stage="search"} 0.5',
        "retrieval_queue_wait_seconds_count 3.0",
        "retrieval_queries_waiting 0.0",
    ):
        assert line in told.text.splitlines(), told.text


def test_a_failed_search_is_counted(server: Any) -> None:
    class Broken(Gate):
        def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
            raise RuntimeError("disk on fire")

    with server(create_app(Broken())) as url:
        reply = httpx.post(f"{url}/retrieve", json={"queries": ["a"]})
        told = httpx.get(f"{url}/metrics").text
    assert reply.status_code == 500 and reply.json() == {"detail": "the search failed: RuntimeError: disk on fire"}
    assert 'retrieval_requests_total{path="/retrieve",status="500"} 1.0' in told


def test_a_client_that_hangs_up_frees_its_place_in_the_queue(server: Any) -> None:
    gate = Gate()

    async def wait_for(http: httpx.AsyncClient, url: str, told: str) -> None:
        while f"retrieval_{told}" not in (await http.get(f"{url}/metrics")).text:
            await asyncio.sleep(0.01)

    async def run(url: str) -> None:
        async with httpx.AsyncClient(timeout=20) as http:
            first = asyncio.create_task(http.post(f"{url}/retrieve", json={"queries": ["first"]}))
            await wait_for(http, url, "batch_queries_count 1.0")
            gone = asyncio.create_task(http.post(f"{url}/retrieve", json={"queries": ["gone", "too"]}))
            await wait_for(http, url, "queries_waiting 2.0")
            gone.cancel()
            await wait_for(http, url, "queries_waiting 0.0")
            gate.gate.set()
            assert (await first).status_code == 200
            await wait_for(http, url, 'requests_total{path="/retrieve",status="499"} 1.0')
            assert "retrieval_batch_queries_sum 1.0" in (await http.get(f"{url}/metrics")).text, "none was searched"

    with server(create_app(gate)) as url:
        asyncio.run(asyncio.wait_for(run(url), 20))

"""POST /retrieve and GET /health: the published contract, limits, and odd input, over ASGI and over a real socket."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from rag_r1.retrieval import Limits, LocalRetriever, RetrievalClient, create_app


@pytest.fixture
def retriever(build: Callable[..., Path], hash_encoder: Any) -> LocalRetriever:
    return LocalRetriever.open(build(), hash_encoder())


def send(app: Any, *bodies: Any) -> list[httpx.Response]:
    """POST each body to /retrieve, all at once."""

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            posts = [
                client.post("/retrieve", content=body, headers={"Content-Type": "application/json"})
                if isinstance(body, bytes)
                else client.post("/retrieve", json=body)
                for body in bodies
            ]
            return list(await asyncio.gather(*posts))

    return asyncio.run(run())


def test_contract_with_and_without_scores(retriever: LocalRetriever) -> None:
    # two queries without scores is the request that the original server mixes up (defect D5)
    queries = ["radium Paris", "compiler"]
    plain, scored = send(
        create_app(retriever),
        {"queries": queries, "topk": 2},
        {"queries": queries, "topk": 2, "return_scores": True},
    )
    expected = retriever.find(queries, 2)
    assert plain.status_code == scored.status_code == 200
    assert plain.json() == {"result": [[{"id": hit.id, "contents": hit.contents} for hit in hits] for hits in expected]}
    assert scored.json() == {
        "result": [
            [{"document": {"id": hit.id, "contents": hit.contents}, "score": hit.score} for hit in hits]
            for hits in expected
        ]
    }


def test_defaults_are_three_passages_without_scores(retriever: LocalRetriever) -> None:
    replies = send(create_app(retriever), {"queries": ["compiler"]}, {"queries": ["compiler"], "topk": None})
    for reply in replies:
        assert [set(hit) for hit in reply.json()["result"][0]] == [{"id", "contents"}] * 3


def test_case_118_no_queries_and_blank_queries(retriever: LocalRetriever) -> None:
    none, blank = send(create_app(retriever), {"queries": []}, {"queries": ["", "compiler"], "topk": 1})
    assert (none.status_code, none.json()) == (200, {"result": []})
    assert blank.status_code == 200 and [len(hits) for hits in blank.json()["result"]] == [0, 1]


def test_case_108_topk_beyond_the_corpus(retriever: LocalRetriever) -> None:
    (reply,) = send(create_app(retriever), {"queries": ["compiler"], "topk": 50})
    assert sorted(hit["id"] for hit in reply.json()["result"][0]) == [0, 1, 2, 3, 4]


def test_case_127_unicode_is_sent_readable(retriever: LocalRetriever) -> None:
    (reply,) = send(create_app(retriever), {"queries": ["Dvořák 東京"], "topk": 1})
    assert "Dvořák wrote a symphony 東京 </information>" in reply.content.decode("utf-8")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"queries": ["a"] * 5}, ["body", "queries"]),
        ({"queries": ["a"], "topk": 11}, ["body", "topk"]),
        ({"queries": ["a"], "topk": 0}, ["body", "topk"]),
        ({"queries": ["a"], "topk": "many"}, ["body", "topk"]),
        ({"queries": ["a"], "topk": "3"}, ["body", "topk"]),
        ({"queries": ["a"], "topk": True}, ["body", "topk"]),
        ({"queries": ["a", "b" * 21]}, ["body", "queries", 1]),
        ({"queries": ["a", 3]}, ["body", "queries", 1]),
        ({"queries": "a"}, ["body", "queries"]),
        ({"topk": 3}, ["body", "queries"]),
        ({"queries": ["a"], "return_scores": "perhaps"}, ["body", "return_scores"]),
        (b'{"queries": ["\\ud800"]}', ["body", "queries", 0]),
        (b'{"queries": [', ["body", 13]),
    ],
)
def test_what_is_refused_names_its_field(retriever: LocalRetriever, body: Any, field: list[Any]) -> None:
    app = create_app(retriever, Limits(max_queries=4, max_topk=10, max_query_chars=20))
    (reply,) = send(app, body)
    assert reply.status_code == 422, reply.text
    assert [detail["loc"] for detail in reply.json()["detail"]] == [field]


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match=r"Limits\.max_topk"):
        Limits(max_topk=0)


def test_case_124_questions_do_not_share_answers(retriever: LocalRetriever) -> None:
    bodies = [{"queries": [query], "topk": k} for query in ("radium", "compiler", "codes") for k in (1, 2, 3)]
    for body, reply in zip(bodies, send(create_app(retriever), *bodies), strict=True):
        expected = retriever.find(body["queries"], body["topk"])
        assert [[hit["id"] for hit in hits] for hits in reply.json()["result"]] == [[h.id for h in e] for e in expected]


def test_a_failing_search_is_a_500_and_the_next_one_works(retriever: LocalRetriever) -> None:
    class Flaky:
        index_id, rows, encoder_name = "x", 1, "x"
        stage_s: dict[str, float] = {}  # noqa: RUF012
        broken = True

        def find(self, queries: Sequence[str], topk: int) -> Any:
            if self.broken:
                raise RuntimeError("disk on fire")
            return retriever.find(queries, topk)

    flaky = Flaky()
    app = create_app(flaky)

    async def run() -> list[int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"queries": ["a"]}
            first = await client.post("/retrieve", json=body)
            flaky.broken = False
            return [first.status_code, (await client.post("/retrieve", json=body)).status_code]

    assert asyncio.run(run()) == [500, 200]


def test_real_server_and_real_client(retriever: LocalRetriever, server: Any) -> None:
    async def run(url: str) -> Any:
        async with RetrievalClient(url + "/retrieve") as client:
            queries = [["radium Paris", "Dvořák 東京"], [], ["compiler", " "]]
            return await client.health(), await asyncio.gather(*(client.search(each, 2) for each in queries))

    with server(create_app(retriever)) as url:
        health, found = asyncio.run(run(url))
        with urllib.request.urlopen(f"{url}/openapi.json") as reply:
            assert "/retrieve" in json.load(reply)["paths"]
    assert health == {
        "status": "ok",
        "index_id": retriever.index_id,
        "rows": 5,
        "encoder": "hash",
        "ready": True,
    }
    assert found == [retriever.find(["radium Paris", "Dvořák 東京"], 2), [], retriever.find(["compiler", " "], 2)]

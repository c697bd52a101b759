"""The retrieval server's HTTP face: ``POST /retrieve``, the published contract, and ``GET /health``.

``/retrieve`` takes ``{"queries": [str, ...], "topk": int = 3, "return_scores": bool = false}`` and gives

    {"result": [[{"document": {"id": int, "contents": str}, "score": float}, ...], ...]}    with scores
    {"result": [[{"id": int, "contents": str}, ...], ...]}                                  without

one list a query, in order, best passage first: what clients of RAG-R1 and Search-R1 send and read.

Invariants:
- No queries give no results, a blank query gives an empty list; both are status 200.
- What breaks a limit is refused with 422, and the reply names the field; nothing is cut silently.
- Passages leave as the corpus holds them. Their tags are the protocol's business, at the reader's end.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from rag_r1.retrieval.service import MicroBatcher
from rag_r1.retrieval.types import Passage, Searcher

DEFAULT_TOPK = 3
_SURROGATE = re.compile("[\ud800-\udfff]")


class RetrieveRequest(BaseModel):
    """``topk`` null or absent means 3."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class Document(BaseModel):
    id: int
    contents: str


class ScoredDocument(BaseModel):
    document: Document
    score: float


class RetrieveResponse(BaseModel):
    result: list[list[ScoredDocument]] | list[list[Document]]


class Health(BaseModel):
    status: str
    index_id: str
    rows: int
    encoder: str
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for, and how many queries are searched together."""

    max_queries: int = 1024
    """Queries in one request. RAG-R1's own client sends a whole training batch at once: 512."""

    max_topk: int = 100
    """Passages a query."""

    max_query_chars: int = 4096
    """Characters a query; the encoder reads a few hundred tokens of it at most."""

    max_batch: int = 256
    """Queries searched together when requests wait."""

    def __post_init__(self) -> None:
        for name in ("max_queries", "max_topk", "max_query_chars", "max_batch"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"Limits.{name} must be at least 1, got {value}")

    def check(self, request: RetrieveRequest) -> int:
        """The request's topk. Raises ``RequestValidationError`` (status 422) that names the field and the limit."""
        topk = DEFAULT_TOPK if request.topk is None else request.topk
        if len(request.queries) > self.max_queries:
            _refuse(f"at most {self.max_queries} queries a request, got {len(request.queries)}", "queries")
        if not 1 <= topk <= self.max_topk:
            _refuse(f"topk must be between 1 and {self.max_topk}, got {topk}", "topk")
        for row, query in enumerate(request.queries):
            if len(query) > self.max_query_chars:
                _refuse(f"at most {self.max_query_chars} characters a query, got {len(query)}", "queries", row)
            if not query.isascii() and _SURROGATE.search(query):
                _refuse("the text holds a lone surrogate, so it has no UTF-8 form", "queries", row)
        return topk


def create_app(searcher: Searcher, limits: Limits | None = None) -> FastAPI:
    """The server over a searcher that is loaded and checked. Needs no start-up event, so it also serves in tests."""
    bounds = limits or Limits()
    batcher = MicroBatcher(searcher, max_batch=bounds.max_batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await batcher.close()

    app = FastAPI(title="RAG-R1 retrieval", lifespan=lifespan)
    app.add_exception_handler(RequestValidationError, _explain)

    @app.post("/retrieve", response_model=RetrieveResponse)
    async def retrieve(request: RetrieveRequest) -> Response:
        topk = bounds.check(request)
        found = await batcher.search(request.queries, topk)
        render = _scored if request.return_scores else _plain
        return _json({"result": [[render(passage) for passage in passages] for passages in found]})

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        return _json(
            {
                "status": "ok",
                "index_id": searcher.index_id,
                "rows": searcher.rows,
                "encoder": searcher.encoder_name,
                "ready": True,
            }
        )

    return app


def _plain(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "contents": passage.contents}


def _scored(passage: Passage) -> dict[str, Any]:
    return {"document": _plain(passage), "score": passage.score}


def _json(content: object, status_code: int = 200) -> Response:
    # orjson: readable Unicode, and a third of the time of json for a few hundred passages
    return Response(orjson.dumps(content), status_code, media_type="application/json")


def _refuse(message: str, *field: str | int) -> None:
    raise RequestValidationError([{"type": "limit", "loc": ("body", *field), "msg": message}])


async def _explain(_: object, error: Exception) -> Response:
    # without the offending input: it may be megabytes long, or text that has no UTF-8 form
    assert isinstance(error, RequestValidationError)
    detail = [{"type": e["type"], "loc": e["loc"], "msg": e["msg"]} for e in error.errors()]
    return _json({"detail": detail}, 422)

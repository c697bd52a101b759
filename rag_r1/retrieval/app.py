"""The retrieval server's HTTP face: ``POST /retrieve``, the published contract, ``GET /health`` and ``GET /metrics``.

``/retrieve`` takes ``{"queries": [str, ...], "topk": int = 3, "return_scores": bool = false}`` and gives

    {"result": [[{"document": {"id": int, "contents": str}, "score": float}, ...], ...]}    with scores
    {"result": [[{"id": int, "contents": str}, ...], ...]}                                  without

one list a query, in order, best passage first: what clients of RAG-R1 and Search-R1 send and read.

Invariants:
- No queries give no results, a blank query gives an empty list; both are status 200.
- What breaks a limit is refused with 422, and the reply names the field; nothing is cut silently. The limits are part of the
  schema at ``/openapi.json``.
- With a token, everything but ``/health`` demands it.
- A client that hangs up is no longer searched for.
- A full queue is 503 with ``Retry-After``; a search that failed is 500. Neither is ever an empty result.
- Passages leave as the corpus holds them. Their tags are the protocol's business, at the reader's end.
"""

# no postponed annotations here: the request model is made inside create_app, from the limits

import asyncio
import hmac
import math
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from rag_r1.retrieval.cache import AnswerCache
from rag_r1.retrieval.metrics import CountRequests, ServerMetrics
from rag_r1.retrieval.service import Overloaded, SearchService
from rag_r1.retrieval.types import Passage, Searcher

DEFAULT_TOPK = 3
_CLIENT_IS_GONE = 499  # which nobody reads; the metrics show it
_SURROGATE = re.compile("[\ud800-\udfff]")
_T = TypeVar("_T")


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


class Problem(BaseModel):
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for, and how much is searched together and waits."""

    max_queries: int = 1024
    """Queries in one request. RAG-R1's own client sends a whole training batch at once: 512."""

    max_topk: int = 100
    """Passages a query."""

    max_query_chars: int = 4096
    """Characters a query; the encoder reads a few hundred tokens of it at most."""

    max_batch: int = 256
    """Queries searched together when requests wait."""

    max_waiting: int = 8_192
    """Queries that wait; a request beyond them gets 503."""

    window_s: float = 0.0
    """How long an idle server waits for more queries before it searches."""

    def __post_init__(self) -> None:
        for name in ("max_queries", "max_topk", "max_query_chars", "max_batch", "max_waiting"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"Limits.{name} must be at least 1, got {value}")
        if self.window_s < 0:
            raise ValueError(f"Limits.window_s must not be negative, got {self.window_s}")


def create_app(
    searcher: Searcher, limits: Limits | None = None, *, cache: AnswerCache | None = None, token: str | None = None
) -> FastAPI:
    """The server over a searcher that is loaded and checked. Needs no start-up event, so it also serves in tests.

    Args:
        cache: answers found before; None looks every query up.
        token: what ``Authorization: Bearer`` must carry everywhere but at ``/health``; None asks nobody.
    """
    bounds = limits or Limits()
    metrics = ServerMetrics()
    service = SearchService(
        searcher,
        max_batch=bounds.max_batch,
        window_s=bounds.window_s,
        max_waiting=bounds.max_waiting,
        cache=cache,
        metrics=metrics,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(title="RAG-R1 retrieval", lifespan=lifespan, openapi_url=None)  # its own /docs would ask nobody
    app.add_exception_handler(RequestValidationError, _explain)
    app.add_exception_handler(Overloaded, _busy)
    app.add_exception_handler(_Unauthorised, _who_are_you)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(CountRequests, metrics=metrics, paths=frozenset({"/retrieve", "/health", "/metrics"}))

    RetrieveRequest = _request_model(bounds)
    bearer = HTTPBearer(auto_error=False)

    def known(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        given = credentials.credentials if credentials else ""
        if not hmac.compare_digest(given.encode(), (token or "").encode()):
            raise _Unauthorised

    guards: list[Any] = [Depends(known)] if token else []
    refusals: dict[int | str, dict[str, Any]] = {401: {"model": Problem}} if token else {}
    # 400 is FastAPI's word for a body that is not UTF-8
    failures: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in (400, 500, 503)}

    @app.post("/retrieve", response_model=RetrieveResponse, responses=refusals | failures, dependencies=guards)
    async def retrieve(asked: RetrieveRequest, request: Request) -> Response:  # type: ignore[valid-type]
        body: Any = asked
        topk = DEFAULT_TOPK if body.topk is None else body.topk
        found = await _unless_gone(request, service.search(body.queries, topk))
        if found is None:
            return Response(status_code=_CLIENT_IS_GONE)
        render = _scored if body.return_scores else _plain
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

    @app.get("/metrics", responses=refusals, response_class=Response, dependencies=guards)
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/openapi.json", include_in_schema=False, dependencies=guards)
    async def openapi() -> Response:
        return _json(app.openapi())

    @app.get("/docs", include_in_schema=False, dependencies=guards)
    async def docs() -> Response:
        return get_swagger_ui_html(openapi_url="openapi.json", title=app.title)

    return app


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T | None:
    """What ``work`` gives, or None once the client has hung up; then ``work`` is cancelled."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(work), asyncio.create_task(hang_up())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return await tasks[0] if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()


def _request_model(limits: Limits) -> type[BaseModel]:
    query = Annotated[StrictStr, Field(max_length=limits.max_query_chars), AfterValidator(_has_utf8)]

    class RetrieveRequest(BaseModel):
        """``topk`` null or absent means 3."""

        model_config = ConfigDict(extra="ignore")
        queries: Annotated[list[query], Field(max_length=limits.max_queries)]
        topk: Annotated[StrictInt, Field(ge=1, le=limits.max_topk), BeforeValidator(_whole)] | None = None
        return_scores: StrictBool = False

    return RetrieveRequest


def _has_utf8(query: str) -> str:
    if not query.isascii() and _SURROGATE.search(query):
        raise ValueError("the text holds a lone surrogate, so it has no UTF-8 form")
    return query


def _whole(number: object) -> object:
    # to JSON Schema 3.0 is an integer
    return int(number) if isinstance(number, float) and number.is_integer() else number


class _Unauthorised(Exception):
    pass


def _plain(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "contents": passage.contents}


def _scored(passage: Passage) -> dict[str, Any]:
    return {"document": _plain(passage), "score": passage.score}


def _json(content: object, status_code: int = 200, **headers: str) -> Response:
    # orjson: readable Unicode, and a third of the time of json for a few hundred passages
    return Response(orjson.dumps(content), status_code, media_type="application/json", headers=headers)


async def _explain(_: Request, error: Exception) -> Response:
    # without the offending input: it may be megabytes long, or text that has no UTF-8 form
    assert isinstance(error, RequestValidationError)
    detail = [{"type": e["type"], "loc": e["loc"], "msg": e["msg"]} for e in error.errors()]
    return _json({"detail": detail}, 422)


async def _busy(_: Request, error: Exception) -> Response:
    assert isinstance(error, Overloaded)
    return _json({"detail": str(error)}, 503, **{"Retry-After": str(max(1, math.ceil(error.retry_after_s)))})


async def _who_are_you(_: Request, __: Exception) -> Response:
    problem = "this server wants a token: send it as 'Authorization: Bearer TOKEN'"
    return _json({"detail": problem}, 401, **{"WWW-Authenticate": "Bearer"})


async def _failed(_: Request, error: Exception) -> Response:
    return _json({"detail": f"the search failed: {type(error).__name__}: {error}"}, 500)

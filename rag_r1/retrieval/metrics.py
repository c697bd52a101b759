"""What a server tells Prometheus at ``GET /metrics``; each app has a registry of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


class ServerMetrics:
    """Counters and histograms of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: Any = {"namespace": "retrieval", "registry": self.registry}
        self.requests = Counter("requests", "Requests by path and status.", ["path", "status"], **own)
        self.queries = Counter("queries", "Queries by where their answer came from.", ["source"], **own)
        self.waiting = Gauge("queries_waiting", "Queries in the queue.", **own)
        self.batch = Histogram("batch_queries", "Queries searched together.", buckets=_BATCH, **own)
        self.wait_s = Histogram("queue_wait_seconds", "Time from a query to its search.", buckets=_SECONDS, **own)
        self.stage_s = Histogram("stage_seconds", "Time of a batch by stage.", ["stage"], buckets=_SECONDS, **own)
        for source in ("cache", "shared", "search"):
            self.queries.labels(source)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class CountRequests:
    """ASGI middleware: counts replies by path (of those that the app has) and status."""

    def __init__(self, app: App, metrics: ServerMetrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        status = 500  # an exception becomes a reply outside of here

        async def counting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counting)
        finally:
            self._metrics.requests.labels(path, str(status)).inc()

"""The real app over a searcher with known answers, on a bad network: slow, failing, dropped and half replies.

python chaos_server.py PORT SEED      writes a line "ready" when it listens
"""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import uvicorn

from rag_r1.retrieval import Limits, create_app
from rag_r1.retrieval.cache import AnswerCache
from rag_r1.retrieval.types import Passage


def right_answer(query: str, topk: int) -> list[tuple[int, str]]:
    """What every server says to a query, without scores."""
    return [(rank, f"{query} / {rank}") for rank in range(topk)]


class Known:
    index_id, rows, encoder_name = "chaos", 10**6, "none"

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.stage_s: dict[str, float] = {}

    def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        time.sleep(self._dice.choice([0, 0.002, 0.02]))
        if self._dice.random() < 0.05:
            raise RuntimeError("the disk had a bad moment")
        return [[Passage(id, text, -float(id)) for id, text in right_answer(query, topk)] for query in queries]


class BadNetwork:
    """ASGI middleware that spoils one reply in ten."""

    def __init__(self, app: Any, dice: random.Random) -> None:
        self._app, self._dice = app, dice

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        fate = self._dice.random()
        if scope["type"] != "http" or fate > 0.1:
            await self._app(scope, receive, send)
        elif fate > 0.06:
            await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"0")]})
            await send({"type": "http.response.body", "body": b"busy"})
        elif fate > 0.03:  # the connection goes in the middle of the reply
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9999")]})
            await send({"type": "http.response.body", "body": b'{"result": [[', "more_body": True})
            raise ConnectionResetError
        else:
            raise ConnectionResetError


def main() -> None:
    port, seed = int(sys.argv[1]), int(sys.argv[2])
    dice = random.Random(seed)
    app = create_app(Known(dice), Limits(max_batch=32, max_waiting=64), cache=AnswerCache("chaos", 20_000))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(256)
    sys.stdout.write(f"ready {sock.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(BadNetwork(app, dice), log_level="critical")).run(sockets=[sock])


if __name__ == "__main__":
    main()

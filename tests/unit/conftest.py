"""A real server in a thread, for every unit test that talks HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn


@pytest.fixture
def server() -> Callable[[Any], Any]:
    """``with server(app) as url``: the app under a real uvicorn."""
    return serve


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """The app under a real uvicorn on a free loopback port; gives its url."""
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        sock.close()

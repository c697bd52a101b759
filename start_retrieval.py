"""Serve an index directory over HTTP: POST /retrieve, GET /health, GET /metrics, and /docs for all three.

    python start_retrieval.py --index DIR [--host 127.0.0.1] [--port 8000]

Prints one line that starts with "ready" when requests are accepted. Ctrl-C ends it cleanly. It asks for the token
in the environment variable RAG_R1_RETRIEVAL_TOKEN, which must be set beyond loopback (docs/retrieval.md).
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
from pathlib import Path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve an index directory: POST /retrieve, GET /health, GET /metrics.")
    parser.add_argument("--index", type=Path, required=True, help="directory made by scripts/build_corpus")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind; beyond loopback it asks for a token")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one, which the ready line tells")
    parser.add_argument("--open", action="store_true", help="answer anyone, without a token")
    search = parser.add_argument_group("search")
    search.add_argument(
        "--retriever", choices=["dense", "bm25", "hybrid"], default="dense", help="hybrid fuses the other two"
    )
    search.add_argument("--encoder", help="hub name or folder of the encoder, if not the name in the manifest")
    search.add_argument("--device", help="torch device of the models, e.g. cuda:0; default: a GPU if there is one")
    search.add_argument("--reranker", help="hub name or folder of a cross-encoder that ranks again what was found")
    search.add_argument("--rerank-from", type=int, default=50, help="passages a query that the reranker reads")
    search.add_argument("--mmap", action="store_true", help="leave the index on disk; the system caches what is used")
    search.add_argument("--gpu", action="store_true", help="spread the index over all GPUs as fp16 (needs faiss-gpu)")
    search.add_argument("--skip-hashes", action="store_true", help="check sizes and counts of files, not SHA-256")
    load = parser.add_argument_group("load")
    load.add_argument("--topk-limit", type=int, default=100, help="most passages a query")
    load.add_argument("--queries-limit", type=int, default=1024, help="most queries a request")
    load.add_argument("--query-chars-limit", type=int, default=4096, help="most characters a query")
    load.add_argument("--max-batch", type=int, default=256, help="most queries searched together")
    load.add_argument("--max-waiting", type=int, default=8192, help="most queries in the queue, then 503")
    load.add_argument("--window-ms", type=float, default=0, help="wait this long for more queries before a search")
    load.add_argument("--cache-mb", type=int, default=256, help="memory for answers found before; 0 keeps none")
    load.add_argument("--cache-file", type=Path, help="keep them in this SQLite file as well")
    load.add_argument("--replicas", type=int, default=1, help="servers on Ray Serve behind this address")
    load.add_argument("--gpus-per-replica", type=float, default=0, help="share of a GPU for each of them")
    return parser.parse_args()


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a taken port is told before the index is loaded."""
    if not 0 <= port < 65_536:  # getaddrinfo would take it modulo 65,536
        raise ValueError(f"cannot bind {host}:{port}: a port is a number from 0 to 65535")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = socket.socket(family, kind, proto)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: a text that is no host name
        raise OSError(f"cannot bind {host}:{port} ({error}): is it in use, or no address of this machine?") from error
    return server


def settings_of(args: argparse.Namespace, token: str | None):  # type: ignore[no-untyped-def]
    from rag_r1.retrieval import Limits
    from rag_r1.retrieval.settings import ServerSettings

    limits = Limits(
        max_queries=args.queries_limit,
        max_topk=args.topk_limit,
        max_query_chars=args.query_chars_limit,
        max_batch=args.max_batch,
        max_waiting=args.max_waiting,
        window_s=args.window_ms / 1e3,
    )
    return ServerSettings(
        index=args.index.resolve(),
        retriever=args.retriever,
        encoder=args.encoder,
        device=args.device,
        reranker=args.reranker,
        rerank_from=args.rerank_from,
        verify_hashes=not args.skip_hashes,
        mmap=args.mmap or args.replicas > 1,
        gpu=args.gpu,
        limits=limits,
        cache_bytes=args.cache_mb << 20,
        cache_file=args.cache_file and args.cache_file.absolute(),
        token=token,
    )


def main() -> None:
    args = parse_args()
    import uvicorn

    from rag_r1.retrieval.transport import TOKEN_VARIABLE, is_loopback, token_from_environment

    try:
        server = bind(args.host, args.port)
        host, port = server.getsockname()[:2]
        token = None if args.open else token_from_environment()
        if not (token or args.open or is_loopback(host)):
            raise ValueError(
                f"{host} is open to the network: set {TOKEN_VARIABLE} to a secret here and where clients run, or say "
                "--open to answer anyone"
            )
        settings = settings_of(args, token)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/retrieve"
        if args.replicas < 1:
            raise ValueError(f"--replicas must be at least 1, got {args.replicas}")
        if args.replicas > 1:
            server.close()
            from rag_r1.cluster.serving import serve

            serve(settings, host, port, args.replicas, args.gpus_per_replica, ready=f"ready: {url}")
            return
        searcher = settings.open()
        app = settings.app(searcher)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"start_retrieval.py: {error}")
    server.listen(2048)
    print(
        f"ready: {url}, {searcher.rows} passages, encoder {searcher.encoder_name}, index {searcher.index_id}",
        flush=True,
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_keep_alive=75,  # a trainer asks again after each update, and should find its connection open
        timeout_graceful_shutdown=10,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it has shut down
        uvicorn.Server(config).run(sockets=[server])


if __name__ == "__main__":
    main()

"""Serve an index directory over HTTP: POST /retrieve, GET /health, and /docs for both.

    python start_retrieval.py --index DIR [--host 127.0.0.1] [--port 8000]

Prints one line that starts with "ready" when requests are accepted. Ctrl-C ends it cleanly.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import socket
import sys
from pathlib import Path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve an index directory: POST /retrieve, GET /health.")
    parser.add_argument("--index", type=Path, required=True, help="directory made by scripts/build_corpus")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind; beyond loopback anyone can ask")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one, which the ready line tells")
    parser.add_argument("--encoder", help="hub name or folder of the encoder, if not the name in the manifest")
    parser.add_argument("--device", help="torch device of the encoder, e.g. cuda:0; default: a GPU if there is one")
    parser.add_argument("--topk-limit", type=int, default=100, help="most passages a query")
    parser.add_argument("--queries-limit", type=int, default=1024, help="most queries a request")
    parser.add_argument("--query-chars-limit", type=int, default=4096, help="most characters a query")
    parser.add_argument("--max-batch", type=int, default=256, help="most queries searched together")
    parser.add_argument("--skip-hashes", action="store_true", help="check sizes and counts of files, not SHA-256")
    return parser.parse_args()


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a taken port is told before the index is loaded."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, kind, proto)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(address)
    return server


def main() -> None:
    args = parse_args()
    import uvicorn

    from rag_r1.retrieval import Limits, LocalRetriever, Manifest, SentenceEncoder, create_app

    try:
        server = bind(args.host, args.port)
        limits = Limits(
            max_queries=args.queries_limit,
            max_topk=args.topk_limit,
            max_query_chars=args.query_chars_limit,
            max_batch=args.max_batch,
        )
        made_by = Manifest.load(args.index).check_complete()
        encoder = SentenceEncoder(args.encoder or made_by.name, family=made_by.family, device=args.device)
        retriever = LocalRetriever.open(args.index, encoder, verify_hashes=not args.skip_hashes)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"start_retrieval.py: {error}")
    host, port = server.getsockname()[:2]
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        print(f"warning: {host} is open to the network, and this server asks nobody who they are", flush=True)
    server.listen(2048)
    print(
        f"ready: http://{f'[{host}]' if ':' in host else host}:{port}/retrieve, {retriever.rows} passages, "
        f"encoder {retriever.encoder_name}, index {retriever.index_id}",
        flush=True,
    )
    config = uvicorn.Config(
        create_app(retriever, limits),
        log_level="warning",
        timeout_keep_alive=75,  # a trainer asks again after each update, and should find its connection open
        timeout_graceful_shutdown=10,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it has shut down
        uvicorn.Server(config).run(sockets=[server])
    retriever.close()


if __name__ == "__main__":
    main()

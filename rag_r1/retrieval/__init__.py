"""Retrieval: a corpus of passages, a dense index over it, a server, and a client for training runs.

The stages: pages -> passages (``corpus``, ``corpus_build``, ``passages``) -> embeddings (``encoder``, ``embeddings``,
``vectors``) -> index shards (``kinds``, ``index_build``, ``index_report``), described by one ``manifest``, and beside them a
BM25 index (``bm25_build``). Searched in this process (``index``, ``local``, ``bm25``, ``hybrid``, ``rerank``; ``opening`` makes the
choice) or over HTTP (server: ``settings``, ``app``, ``service``, ``cache``; ``client``, ``transport``).

Names load on first use: whoever only talks to a server (``RetrievalClient``) loads neither torch nor faiss.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_r1.retrieval.app import Limits, create_app
    from rag_r1.retrieval.bm25 import Bm25Retriever
    from rag_r1.retrieval.bm25_build import build_bm25
    from rag_r1.retrieval.client import RetrievalClient
    from rag_r1.retrieval.corpus_build import split_corpus
    from rag_r1.retrieval.embeddings import build_embeddings
    from rag_r1.retrieval.encoder import Encoder, SentenceEncoder
    from rag_r1.retrieval.hybrid import HybridRetriever
    from rag_r1.retrieval.index import ShardedIndex
    from rag_r1.retrieval.index_build import build_index
    from rag_r1.retrieval.index_merge import merge_index
    from rag_r1.retrieval.local import LocalRetriever
    from rag_r1.retrieval.manifest import Manifest
    from rag_r1.retrieval.opening import open_searcher
    from rag_r1.retrieval.passages import PassageStore
    from rag_r1.retrieval.rerank import CrossEncoderScorer, Reranker
    from rag_r1.retrieval.types import (
        Passage,
        RetrievalError,
        Retriever,
        RetrieverRefused,
        RetrieverUnreachable,
        Searcher,
    )

_HOME = {
    "Limits": "app",
    "create_app": "app",
    "Bm25Retriever": "bm25",
    "build_bm25": "bm25_build",
    "RetrievalClient": "client",
    "split_corpus": "corpus_build",
    "build_embeddings": "embeddings",
    "Encoder": "encoder",
    "SentenceEncoder": "encoder",
    "HybridRetriever": "hybrid",
    "ShardedIndex": "index",
    "build_index": "index_build",
    "merge_index": "index_merge",
    "LocalRetriever": "local",
    "Manifest": "manifest",
    "open_searcher": "opening",
    "PassageStore": "passages",
    "CrossEncoderScorer": "rerank",
    "Reranker": "rerank",
    "Passage": "types",
    "RetrievalError": "types",
    "Retriever": "types",
    "RetrieverRefused": "types",
    "RetrieverUnreachable": "types",
    "Searcher": "types",
}

__all__ = [
    "Bm25Retriever",
    "CrossEncoderScorer",
    "Encoder",
    "HybridRetriever",
    "Limits",
    "LocalRetriever",
    "Manifest",
    "Passage",
    "PassageStore",
    "Reranker",
    "RetrievalClient",
    "RetrievalError",
    "Retriever",
    "RetrieverRefused",
    "RetrieverUnreachable",
    "Searcher",
    "SentenceEncoder",
    "ShardedIndex",
    "build_bm25",
    "build_embeddings",
    "build_index",
    "create_app",
    "merge_index",
    "open_searcher",
    "split_corpus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

"""Retrieval: a corpus of passages, a dense index over it, a server, and a client for training runs.

The stages: pages -> passages (``corpus``, ``corpus_build``, ``passages``) -> embeddings (``encoder``, ``embeddings``,
``vectors``) -> index shards (``kinds``, ``index_build``, ``index_report``), described by one ``manifest``; searched in this
process (``index``, ``local``) or over HTTP (server: ``settings``, ``app``, ``service``, ``cache``; ``client``, ``transport``).

Names load on first use: whoever only talks to a server (``RetrievalClient``) loads neither torch nor faiss.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_r1.retrieval.app import Limits, create_app
    from rag_r1.retrieval.client import RetrievalClient
    from rag_r1.retrieval.corpus_build import split_corpus
    from rag_r1.retrieval.embeddings import build_embeddings
    from rag_r1.retrieval.encoder import Encoder, SentenceEncoder
    from rag_r1.retrieval.index import ShardedIndex
    from rag_r1.retrieval.index_build import build_index
    from rag_r1.retrieval.index_merge import merge_index
    from rag_r1.retrieval.local import LocalRetriever
    from rag_r1.retrieval.manifest import Manifest
    from rag_r1.retrieval.passages import PassageStore
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
    "RetrievalClient": "client",
    "split_corpus": "corpus_build",
    "build_embeddings": "embeddings",
    "Encoder": "encoder",
    "SentenceEncoder": "encoder",
    "ShardedIndex": "index",
    "build_index": "index_build",
    "merge_index": "index_merge",
    "LocalRetriever": "local",
    "Manifest": "manifest",
    "PassageStore": "passages",
    "Passage": "types",
    "RetrievalError": "types",
    "Retriever": "types",
    "RetrieverRefused": "types",
    "RetrieverUnreachable": "types",
    "Searcher": "types",
}

__all__ = [
    "Encoder",
    "Limits",
    "LocalRetriever",
    "Manifest",
    "Passage",
    "PassageStore",
    "RetrievalClient",
    "RetrievalError",
    "Retriever",
    "RetrieverRefused",
    "RetrieverUnreachable",
    "Searcher",
    "SentenceEncoder",
    "ShardedIndex",
    "build_embeddings",
    "build_index",
    "create_app",
    "merge_index",
    "split_corpus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

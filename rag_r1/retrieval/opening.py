"""From settings to a searcher: dense, BM25 or both, with or without a reranker behind."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from rag_r1.retrieval.bm25 import Bm25Retriever
from rag_r1.retrieval.encoder import SentenceEncoder
from rag_r1.retrieval.hybrid import HybridRetriever
from rag_r1.retrieval.local import LocalRetriever
from rag_r1.retrieval.manifest import Manifest
from rag_r1.retrieval.rerank import RERANK_FROM, CrossEncoderScorer, Reranker
from rag_r1.retrieval.types import Searcher

RetrieverKind = Literal["dense", "bm25", "hybrid"]
RETRIEVERS: tuple[RetrieverKind, ...] = get_args(RetrieverKind)


def open_searcher(
    directory: str | Path,
    *,
    retriever: RetrieverKind = "dense",
    encoder: str | None = None,
    device: str | None = None,
    verify_hashes: bool = True,
    mmap: bool = False,
    gpu: bool = False,
    reranker: str | None = None,
    rerank_from: int = RERANK_FROM,
) -> Searcher:
    """Load what an index directory is searched with.

    Args:
        retriever: "dense" needs embeddings and index, "bm25" the folder of ``build_bm25``, "hybrid" both.
        encoder: hub name or folder of the dense encoder, if not the name in the manifest.
        device: torch device of encoder and reranker; None takes a GPU if there is one.
        mmap, gpu: where the dense index is kept, see ``ShardedIndex.open``; BM25 is always memory-mapped.
        reranker: hub name or folder of a cross-encoder; None ranks in one stage.
        rerank_from: passages a query that the reranker reads.

    Raises:
        ValueError, OSError: what is missing or does not fit; the message says what to do.
    """
    if retriever not in RETRIEVERS:
        raise ValueError(f"retriever must be one of {', '.join(RETRIEVERS)}, got {retriever!r}")
    # first, because an index may take minutes to check
    scorer = None if reranker is None else CrossEncoderScorer(reranker, device=device)
    searchers: list[Searcher] = []
    corpus = None
    if retriever != "bm25":
        manifest = Manifest.load(directory)
        made_by = manifest.check_complete()
        corpus = manifest.corpus  # checked against the file, its hash included, as the index is opened
        model = SentenceEncoder(encoder or made_by.name, family=made_by.family, device=device)
        searchers.append(LocalRetriever.open(directory, model, verify_hashes=verify_hashes, mmap=mmap, gpu=gpu))
    if retriever != "dense":
        searchers.append(Bm25Retriever.open(directory, verify_hashes=verify_hashes, corpus=corpus))
    found = searchers[0] if len(searchers) == 1 else HybridRetriever(searchers)
    return Reranker(found, scorer, name=str(reranker), retrieve_n=rerank_from) if scorer else found

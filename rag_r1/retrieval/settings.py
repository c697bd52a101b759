"""Everything that makes a server out of an index directory: what ``start_retrieval.py`` takes, and what a replica is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI

from rag_r1.retrieval.app import Limits, create_app
from rag_r1.retrieval.cache import AnswerCache
from rag_r1.retrieval.opening import RetrieverKind, open_searcher
from rag_r1.retrieval.rerank import RERANK_FROM
from rag_r1.retrieval.types import Searcher


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Picklable, so that the server in this process and those on Ray are made from the same."""

    index: Path
    retriever: RetrieverKind = "dense"
    encoder: str | None = None
    """Hub name or folder of the encoder, if not the name in the manifest."""
    device: str | None = None
    """Torch device of encoder and reranker; None takes a GPU if there is one."""
    reranker: str | None = None
    """Hub name or folder of a cross-encoder; None ranks in one stage."""
    rerank_from: int = RERANK_FROM
    """Passages a query that the reranker reads."""
    verify_hashes: bool = True
    mmap: bool = False
    gpu: bool = False
    limits: Limits = field(default_factory=Limits)
    cache_bytes: int = 256 << 20
    """Of answers in memory; 0 keeps none."""
    cache_file: Path | None = None
    token: str | None = field(default=None, repr=False)  # Ray and tracebacks print settings

    def __post_init__(self) -> None:
        if self.cache_bytes < 0:
            raise ValueError(f"the cache's bytes must not be negative, got {self.cache_bytes}")
        if self.cache_file and not self.cache_bytes:
            raise ValueError(
                f"the cache is off (0 bytes), so its file {self.cache_file} would stay empty: drop one of them"
            )

    def open(self) -> Searcher:
        """Load what is served. Raises ``ValueError`` or ``OSError`` for what is missing or does not fit."""
        return open_searcher(
            self.index,
            retriever=self.retriever,
            encoder=self.encoder,
            device=self.device,
            verify_hashes=self.verify_hashes,
            mmap=self.mmap,
            gpu=self.gpu,
            reranker=self.reranker,
            rerank_from=self.rerank_from,
        )

    def app(self, searcher: Searcher) -> FastAPI:
        """The server over it."""
        cache = AnswerCache(searcher.index_id, self.cache_bytes, self.cache_file) if self.cache_bytes else None
        return create_app(searcher, self.limits, cache=cache, token=self.token)

"""A second stage over any searcher: retrieve n passages, let a cross-encoder read each with the question, keep the best.

A cross-encoder reads question and passage together, which ranks better than comparing two vectors and costs a forward pass a
pair: n pairs a query. Invariants:
- At least ``topk`` passages are retrieved, whatever n is, so the second stage never loses a hit to the first one's cut.
- ``score`` is the cross-encoder's; equal scores are ordered by id. A score that is not a finite number is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from rag_r1.retrieval.blocking import BlockingSearcher
from rag_r1.retrieval.files import short_id
from rag_r1.retrieval.types import Passage, RetrievalError, Searcher

RERANK_FROM = 50
_BATCH_PAIRS = 64


class PairScorer(Protocol):
    """Anything that scores pairs of (query, passage contents): ``(len(pairs),)`` numbers, larger is better."""

    def predict(self, pairs: list[tuple[str, str]], /) -> Any: ...


class CrossEncoderScorer:
    """A sentence-transformers cross-encoder by hub name or folder: fp16 on a GPU, fp32 on a CPU.

    ``device`` is a torch device; None takes the first GPU, else the CPU.

    Raises:
        ValueError: a model that gives more than one number a pair (a classifier, which ranks nothing).
        OSError: no such model, or no way to fetch it.
    """

    def __init__(self, name: str, *, device: str | None = None) -> None:
        import torch
        from sentence_transformers import CrossEncoder

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._model: Any = CrossEncoder(name, device=device)
        except OSError as error:
            raise OSError(
                f"reranker {name!r} cannot be loaded ({' '.join(str(error).split())}): give the folder of a "
                "cross-encoder, or a hub name that this machine can fetch or has fetched before"
            ) from error
        if self._model.num_labels != 1:
            raise ValueError(
                f"reranker {name!r} gives {self._model.num_labels} numbers a pair, but ranking needs one: "
                "take a cross-encoder with a single label, such as cross-encoder/ms-marco-MiniLM-L6-v2"
            )
        if torch.device(device).type != "cpu":
            self._model.half()

    def predict(self, pairs: list[tuple[str, str]], /) -> np.ndarray:
        """``(len(pairs),)`` float32. Pairs longer than the model reads are cut at the end of the passage."""
        scores = self._model.predict(pairs, batch_size=_BATCH_PAIRS, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(scores, np.float32)


class Reranker(BlockingSearcher):
    """``stage_s`` has the stages of the first stage, and "rerank".

    Args:
        searcher: the first stage.
        scorer: the second; its ``name`` goes into ``index_id``, and so into the key of cached answers.
        retrieve_n: passages a query that the scorer reads, or ``topk`` where that is more.
    """

    def __init__(self, searcher: Searcher, scorer: PairScorer, *, name: str, retrieve_n: int = RERANK_FROM) -> None:
        super().__init__()
        if retrieve_n < 1:
            raise ValueError(f"retrieve_n must be at least 1, got {retrieve_n}")
        self._searcher, self._scorer, self._retrieve_n = searcher, scorer, retrieve_n
        self.rows = searcher.rows
        self.encoder_name = f"{searcher.encoder_name}, reranked by {name}"
        parts = {"first": searcher.index_id, "reranker": name, "retrieve_n": retrieve_n}
        self.index_id = short_id(parts)

    def _find(self, queries: list[str], topk: int) -> list[list[Passage]]:
        found = self._searcher.find(queries, max(self._retrieve_n, topk))
        start = perf_counter()
        pairs = [(query, hit.contents) for query, hits in zip(queries, found, strict=True) for hit in hits]
        scores = iter(self._scores(pairs))
        ranked = [_best([replace(hit, score=next(scores)) for hit in hits], topk) for hits in found]
        self.stage_s = {**self._searcher.stage_s, "rerank": perf_counter() - start}
        return ranked

    def _scores(self, pairs: list[tuple[str, str]]) -> list[float]:
        if not pairs:
            return []
        scores = np.asarray(self._scorer.predict(pairs), np.float64)
        if scores.shape != (len(pairs),):
            raise RetrievalError(f"{self.encoder_name}: {len(pairs)} pairs got scores of shape {scores.shape}")
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            query, contents = pairs[bad[0]]
            raise RetrievalError(
                f"{self.encoder_name}: the score of query {query[:80]!r} with passage {contents[:80]!r} is "
                f"{scores[bad[0]]}: the model's weights are damaged, or fp16 is too narrow for it"
            )
        return [float(score) for score in scores]


def _best(hits: Sequence[Passage], topk: int) -> list[Passage]:
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:topk]

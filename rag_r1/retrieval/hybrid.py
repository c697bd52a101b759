"""Several searchers of one corpus fused by reciprocal rank: dense for meaning, BM25 for names and numbers.

The score of a passage is the sum of 1 / (k + rank) over the searchers that found it, ranks from 1 (Cormack, Clarke and
Büttcher, SIGIR 2009, who set k = 60). Scores of different searchers are never compared, so they need no scale. Invariants:
- A passage comes once; equal scores are ordered by id.
- What one searcher alone finds can be a hit; a passage that none has among its candidates cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from rag_r1.retrieval.blocking import BlockingSearcher
from rag_r1.retrieval.files import short_id
from rag_r1.retrieval.types import Passage, Searcher

CANDIDATES = 100
RANK_CONSTANT = 60


class HybridRetriever(BlockingSearcher):
    """``find`` asks the searchers one after the other. ``stage_s`` has their stages, added up by name, and "fuse".

    Args:
        searchers: two or more, over the same corpus.
        candidates: passages that each is asked for, or ``topk`` where that is more.
        k: the rank constant; the larger it is, the less the first ranks count above the others.

    Raises:
        ValueError: searchers whose numbers of rows differ, or a number out of range.
    """

    def __init__(
        self, searchers: Sequence[Searcher], *, candidates: int = CANDIDATES, k: float = RANK_CONSTANT
    ) -> None:
        super().__init__()
        if len(searchers) < 2 or candidates < 1 or k < 0:
            raise ValueError(
                f"a hybrid needs two searchers or more, at least 1 candidate and k of 0 or more, "
                f"got {len(searchers)}, {candidates} and {k}"
            )
        if len({searcher.rows for searcher in searchers}) > 1:
            rows = ", ".join(f"{searcher.encoder_name} has {searcher.rows} rows" for searcher in searchers)
            raise ValueError(f"the searchers are not over the same corpus: {rows}. Build both from one corpus")
        self._searchers, self._candidates, self._k = tuple(searchers), candidates, k
        self.rows = searchers[0].rows
        self.encoder_name = " + ".join(searcher.encoder_name for searcher in searchers)
        parts = {"fused": [searcher.index_id for searcher in searchers], "candidates": candidates, "k": k}
        self.index_id = short_id(parts)

    def _find(self, queries: list[str], topk: int) -> list[list[Passage]]:
        depth = max(self._candidates, topk)
        stage_s: defaultdict[str, float] = defaultdict(float)
        rankings = []
        for searcher in self._searchers:
            rankings.append(searcher.find(queries, depth))
            for stage, seconds in searcher.stage_s.items():
                stage_s[stage] += seconds
        start = perf_counter()
        fused = [reciprocal_rank_fusion(lists, topk, k=self._k) for lists in zip(*rankings, strict=True)]
        stage_s["fuse"] = perf_counter() - start
        self.stage_s = dict(stage_s)
        return fused


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[Passage]], topk: int, *, k: float = RANK_CONSTANT
) -> list[Passage]:
    """The ``topk`` best of one query's rankings, each best first; ``score`` is the sum of 1 / (k + rank)."""
    scores: defaultdict[int, float] = defaultdict(float)
    passages: dict[int, Passage] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, start=1):
            scores[passage.id] += 1 / (k + rank)
            passages.setdefault(passage.id, passage)
    best = sorted(scores, key=lambda id: (-scores[id], id))[:topk]
    return [replace(passages[id], score=scores[id]) for id in best]

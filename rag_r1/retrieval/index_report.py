"""How good an index is: recall against the exact answer, size, and the cheapest search that reaches a wanted recall.

recall@k is the share of the k best passages by exact search that are among the k which the index gives, averaged over queries.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from rag_r1.retrieval.embeddings import read_embeddings
from rag_r1.retrieval.index import Hit, ShardedIndex, merge_topk
from rag_r1.retrieval.manifest import Manifest
from rag_r1.retrieval.vectors import VectorFile

QUERIES = 1_000
TOPK = (3, 10)
_ROWS_PER_BLOCK = 4_096  # times 1,000 queries: 16 MB of scores
_MOST_EFFORT = 1_024  # clusters probed, or candidates kept


def measure(
    directory: Path, manifest: Manifest, *, recall: float, queries: np.ndarray | None = None
) -> tuple[dict[str, int], dict[str, Any]]:
    """The search parameters to use, and the report: recall@3 and @10, bytes, queries, milliseconds a query.

    ``queries``: ``(n, dim)``; without them passages look for their neighbours, and finding oneself does not count.
    """
    size = sum(shard.bytes for shard in manifest.shards)
    if manifest.factory == "Flat":
        return {}, {"recall@3": 1.0, "recall@10": 1.0, "bytes": size, "measured": "exact by definition"}
    own = queries is None
    rows = np.random.default_rng(1).permutation(manifest.corpus.rows)[:QUERIES] if own else None
    asked = read_embeddings(directory, manifest, np.sort(rows)) if rows is not None else np.asarray(queries, np.float32)
    skip = np.sort(rows) if rows is not None else np.full(len(asked), -1)
    width = max(TOPK) + int(own)
    exact = exact_topk(directory, manifest, asked, width)
    index = ShardedIndex.open(directory, manifest, verify_hash=False, mmap=True)

    search: dict[str, int] = {}
    values: dict[int, float] = {}
    spent_s = 0.0
    name = effort_name(manifest.factory)
    effort = 1
    while True:
        if name:
            search = {name: effort}
            index.tune(search)
        start = time.perf_counter()
        found = index.search(asked, width)
        spent_s = time.perf_counter() - start
        values = {k: recall_at(k, found, exact, skip) for k in TOPK}
        if not name or values[TOPK[0]] >= recall or effort >= _MOST_EFFORT:
            break
        effort *= 2
    report: dict[str, Any] = {f"recall@{k}": round(value, 4) for k, value in values.items()}
    report |= {"bytes": size, "queries": len(asked), "ms_per_query": round(1e3 * spent_s / len(asked), 3)}
    return search, {**report, "measured": "passages as queries" if own else "queries given"}


def effort_name(factory: str) -> str | None:
    """FAISS's name of the parameter that trades time for recall in such an index; None for one that scans all."""
    return "nprobe" if "IVF" in factory else "efSearch" if "HNSW" in factory else None


def exact_topk(directory: Path, manifest: Manifest, queries: np.ndarray, topk: int) -> list[list[Hit]]:
    """The ``topk`` best rows of each query by inner product, read through the embeddings in blocks."""
    best: list[tuple[np.ndarray, np.ndarray]] = []
    for shard in manifest.embeddings:
        table = VectorFile.open(directory / shard.file)
        for start in range(0, table.shape[0], _ROWS_PER_BLOCK):
            block = table.read(start, min(start + _ROWS_PER_BLOCK, table.shape[0]))
            scores = queries @ block.T
            kept = min(topk, scores.shape[1])
            columns = np.argpartition(-scores, kept - 1, axis=1)[:, :kept]
            best.append((np.take_along_axis(scores, columns, axis=1), columns + shard.start + start))
            if len(best) == 8:
                best = [_as_part(merge_topk(best, topk), topk)]
        table.close()
    return merge_topk(best, topk)


def recall_at(k: int, found: list[list[Hit]], exact: list[list[Hit]], skip: np.ndarray) -> float:
    """recall@k over all queries; ``skip`` holds one row for each query that counts on neither side, or -1."""
    shares = []
    for ours, right, own in zip(found, exact, skip, strict=True):
        wanted = [row for row, _ in right if row != own][:k]
        given = [row for row, _ in ours if row != own][:k]
        if wanted:
            shares.append(len(set(wanted) & set(given)) / len(wanted))
    return float(np.mean(shares)) if shares else 1.0


def _as_part(hits: list[list[Hit]], topk: int) -> tuple[np.ndarray, np.ndarray]:
    scores = np.full((len(hits), topk), -np.inf, np.float32)
    ids = np.full((len(hits), topk), -1, np.int64)
    for query, found in enumerate(hits):
        for place, (row, score) in enumerate(found):
            ids[query, place], scores[query, place] = row, score
    return scores, ids

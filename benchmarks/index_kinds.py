"""Recall and speed of every kind of index against the flat one, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/index_kinds.py          --kinds flat ivf_sq8: 6 minutes

1,000,000 x 256 unit vectors in 10,000 clusters: a random centre, plus noise ``NOISE`` times as long. 1,000 queries are drawn in the
same way. Real embeddings are clustered too, though less sharply.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rag_r1.retrieval import ShardedIndex, build_embeddings, build_index
from rag_r1.retrieval.blas import faiss
from rag_r1.retrieval.encoder import EncoderSpec
from rag_r1.retrieval.index_report import exact_topk, recall_at
from rag_r1.retrieval.passages import PassageWriter

ROWS, DIM, CLUSTERS, NOISE, QUERIES, BATCH = 1_000_000, 256, 10_000, 0.75, 1_000, 256


class Clustered:
    spec = EncoderSpec("clustered", "clustered", DIM, "none", True, "", "", 512)

    def __init__(self, seed: int) -> None:
        self._centres = np.random.default_rng(0).standard_normal((CLUSTERS, DIM), np.float32)
        self._numbers = np.random.default_rng(seed)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._centres[self._numbers.integers(0, CLUSTERS, len(texts))]
        vectors = vectors + NOISE * self._numbers.standard_normal(vectors.shape, np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_queries = encode_passages


def main() -> None:
    parser = argparse.ArgumentParser(description="Recall and speed of the kinds of index.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--kinds", nargs="+", default=["flat", "ivf_sq8", "sq8", "ivf_pq", "hnsw_sq8"])
    parser.add_argument("--work", type=Path, default=Path("outputs/benchmarks/index_kinds"))
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    directory = args.work / str(args.rows)
    if not (directory / "passages.tsv").is_file():
        with PassageWriter(directory) as writer:
            for row in range(args.rows):
                writer.write(f"Page {row}")
    build_embeddings(directory, Clustered(1))
    queries = Clustered(2).encode_queries([""] * QUERIES)
    base = 0.0
    exact = None
    print("| kind | recall@3 | recall@10 | queries/s | against flat | size | build | search |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in args.kinds:
        manifest = build_index(directory, kind, queries=Clustered(3).encode_queries([""] * QUERIES))
        exact = exact or exact_topk(directory, manifest, queries, 10)
        index = ShardedIndex.open(directory, manifest, verify_hash=False)
        index.search(queries[:BATCH], 10)  # warm
        start = time.perf_counter()
        found = [hits for at in range(0, QUERIES, BATCH) for hits in index.search(queries[at : at + BATCH], 10)]
        rate = QUERIES / (time.perf_counter() - start)
        base = base or rate
        recalls = [recall_at(k, found, exact, np.full(QUERIES, -1)) for k in (3, 10)]
        report = manifest.report
        print(
            f"| {kind} ({manifest.factory}) | {recalls[0]:.3f} | {recalls[1]:.3f} | {rate:,.0f} | {rate / base:.1f} x | "
            f"{report['bytes'] / 1e6:,.0f} MB | {report['build_s']:.0f} s | {manifest.search or 'all'} |",
            flush=True,
        )
        del index


if __name__ == "__main__":
    main()

"""Third stage of a build, and search: FAISS flat inner-product shards, one file each, searched as one index.

Invariants:
- Ids are global: id = row in the corpus. A shard numbers its rows from 0 and its start is added, always here.
- The result over shards is that of one index: exact, ordered by score, equal scores by id. Where equal scores straddle
  the cut at ``topk``, which of them stay is FAISS's choice.
- Fewer than ``topk`` rows give fewer hits: never FAISS's filler id -1, never a repeat.
- Build memory is one shard plus one block of vectors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np

from rag_r1.retrieval.embeddings import remove_others
from rag_r1.retrieval.manifest import Manifest, ManifestError, Shard, check_cover, check_file

_ROWS_PER_BLOCK = 16_384

Hit = tuple[int, float]  # (global id, inner product)


def build_index(directory: str | Path, *, on_progress: Callable[[int], object] | None = None) -> Manifest:
    """Make ``index-00000.faiss`` ... of the embeddings, shard for shard, and complete the manifest.

    ``on_progress`` gets the number of rows added since the last call.

    Raises:
        ManifestError: embeddings that are missing, torn, or not those of the corpus.
    """
    directory = Path(directory)
    manifest = Manifest.load(directory)
    if manifest.encoder is None:
        raise ManifestError(f"{directory} has no embeddings yet: run scripts/build_corpus/build_embeddings.py")
    check_cover(manifest.embeddings, manifest.corpus.rows)
    replace(manifest, shards=()).save(directory)
    shards = []
    for number, source in enumerate(manifest.embeddings):
        table = np.load(check_file(directory, source, verify_hash=True), mmap_mode="r")
        rows, dim = table.shape
        index = faiss.IndexFlatIP(dim)
        index.codes.resize(rows * index.code_size)  # reserve: else the vector doubles as it grows
        index.codes.resize(0)
        for start in range(0, rows, _ROWS_PER_BLOCK):
            block = np.ascontiguousarray(table[start : start + _ROWS_PER_BLOCK], np.float32)
            index.add(block)
            if on_progress:
                on_progress(len(block))
        path = directory / f"index-{number:05d}.faiss"
        partial = path.with_name(path.name + ".partial")
        faiss.write_index(index, str(partial))
        os.replace(partial, path)
        shards.append(Shard.of(path, source.start, source.stop))
    remove_others(directory, "index-*.faiss", shards)
    manifest = replace(manifest, shards=tuple(shards))
    manifest.save(directory)
    return manifest


class ShardedIndex:
    """Shards over consecutive rows. ``search`` is not meant for several threads at once."""

    def __init__(self, shards: Sequence[tuple[int, faiss.Index]]) -> None:
        """Args: (first global row, FAISS index) of each shard. All of one dimension, all inner product."""
        if not shards:
            raise ManifestError("an index needs at least one shard")
        self._shards = tuple(shards)
        self.dim = int(shards[0][1].d)
        self.rows = sum(int(index.ntotal) for _, index in shards)
        for start, index in shards:
            if index.metric_type != faiss.METRIC_INNER_PRODUCT or index.d != self.dim:
                raise ManifestError(
                    f"the shard at row {start} has metric {index.metric_type} and dimension {index.d}, "
                    f"expected {faiss.METRIC_INNER_PRODUCT} (inner product) and {self.dim}"
                )

    @classmethod
    def open(cls, directory: str | Path, manifest: Manifest, *, verify_hash: bool = True) -> ShardedIndex:
        """Read every shard into memory. Raises ``ManifestError`` for files that are not those of the manifest."""
        directory = Path(directory)
        spec = manifest.check_complete()
        loaded = []
        for shard in manifest.shards:
            path = check_file(directory, shard, verify_hash=verify_hash)
            index = faiss.read_index(str(path))
            if (index.ntotal, index.d) != (shard.stop - shard.start, spec.dim):
                raise ManifestError(
                    f"{path} holds {index.ntotal} rows of dimension {index.d}, but the manifest says "
                    f"{shard.stop - shard.start} rows of dimension {spec.dim}"
                )
            loaded.append((shard.start, index))
        return cls(loaded)

    def search(self, vectors: np.ndarray, topk: int) -> list[list[Hit]]:
        """The ``topk`` best rows of each vector, best first. ``vectors``: ``(n, dim)`` float32."""
        if topk < 1:
            raise ValueError(f"topk must be at least 1, got {topk}")
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise ValueError(f"query vectors have shape {vectors.shape}, the index needs (n, {self.dim})")
        if not len(vectors):
            return []
        parts = []
        for start, index in self._shards:
            scores, ids = index.search(np.ascontiguousarray(vectors, np.float32), min(topk, int(index.ntotal)))
            parts.append((scores, np.where(ids < 0, ids, ids + start)))
        return merge_topk(parts, topk)

    def vector(self, row: int) -> np.ndarray:
        """The stored vector of a global row, ``(dim,)`` float32."""
        for start, index in self._shards:
            if start <= row < start + index.ntotal:
                return np.asarray(index.reconstruct(row - start), np.float32)
        raise IndexError(f"row {row} is not in the index, which has {self.rows} rows")


def merge_topk(parts: Sequence[tuple[np.ndarray, np.ndarray]], topk: int) -> list[list[Hit]]:
    """Merge the results of shards: per query the ``topk`` best by (score down, id up), without filler ids.

    Args:
        parts: of each shard its scores ``(n, k)`` float32 and global ids ``(n, k)`` int64; k may differ, -1 is filler.
    """
    scores = np.concatenate([part[0] for part in parts], axis=1)
    ids = np.concatenate([part[1] for part in parts], axis=1)
    order = np.lexsort((ids, -scores), axis=1)  # the last key is the first to sort by
    merged = []
    for row in range(len(ids)):
        ranked = order[row][ids[row][order[row]] >= 0][:topk]
        merged.append([(int(ids[row][i]), float(scores[row][i])) for i in ranked])
    return merged

"""Search: FAISS inner-product shards, one file each, searched as one index.

Invariants:
- Ids are global: id = row in the corpus. A shard numbers its rows from 0 and its start is added, always here.
- The merge over shards is exact: ordered by score, equal scores by id. Where equal scores straddle the cut at ``topk``,
  which of them stay is FAISS's choice.
- Fewer than ``topk`` rows give fewer hits: never FAISS's filler id -1, never a repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag_r1.retrieval.blas import faiss, use_matrix_products
from rag_r1.retrieval.manifest import Manifest, ManifestError, check_file

Hit = tuple[int, float]  # (global id, inner product)


class ShardedIndex:
    """Shards over consecutive rows. ``search`` is not meant for several threads at once."""

    def __init__(self, shards: Sequence[tuple[int, Any]]) -> None:
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
        use_matrix_products(self.dim)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        manifest: Manifest,
        *,
        verify_hash: bool = True,
        mmap: bool = False,
        gpu: bool = False,
    ) -> ShardedIndex:
        """Open every shard, with the search parameters of the manifest.

        Args:
            mmap: leave the vectors in the files; the system keeps in memory what is used, and shares it among processes.
            gpu: move them to all GPUs, as fp16, each shard spread over the GPUs (needs faiss-gpu).

        Raises:
            ManifestError: files that are not those of the manifest, or ``gpu`` where FAISS sees none.
        """
        directory = Path(directory)
        spec = manifest.check_complete()
        if gpu and not getattr(faiss, "get_num_gpus", int)():
            raise ManifestError(
                "--gpu: this build of FAISS sees no GPU; install faiss-gpu in place of faiss-cpu, or leave --gpu out"
            )
        loaded = []
        for shard in manifest.shards:
            path = check_file(directory, shard, verify_hash=verify_hash)
            index = faiss.read_index(str(path), _mapping(manifest.factory) if mmap else 0)
            if (index.ntotal, index.d) != (shard.stop - shard.start, spec.dim):
                raise ManifestError(
                    f"{path} holds {index.ntotal} rows of dimension {index.d}, but the manifest says "
                    f"{shard.stop - shard.start} rows of dimension {spec.dim}"
                )
            loaded.append((shard.start, _to_gpus(index) if gpu else index))
        opened = cls(loaded)
        opened.tune(manifest.search)
        return opened

    def tune(self, parameters: Mapping[str, int]) -> None:
        """Set search parameters of FAISS on every shard: ``{"nprobe": 16}``, ``{"efSearch": 64}``."""
        space = faiss.GpuParameterSpace if hasattr(faiss, "GpuParameterSpace") else faiss.ParameterSpace
        for name, value in parameters.items():
            for _, index in self._shards:
                space().set_index_parameter(index, name, value)

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


def _mapping(factory: str) -> int:
    # FAISS maps inverted lists by one flag and flat codes by another, and refuses the two together
    return int(faiss.IO_FLAG_MMAP if "IVF" in factory else faiss.IO_FLAG_MMAP_IFC)


def _to_gpus(index: Any) -> Any:
    options = faiss.GpuMultipleClonerOptions()
    options.shard = True
    options.useFloat16 = True
    return faiss.index_cpu_to_all_gpus(index, co=options)

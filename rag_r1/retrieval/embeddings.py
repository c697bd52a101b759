"""Second stage of a build: the vector of every passage, in memory-mapped ``.npy`` shards.

Invariants:
- Row r of shard ``[start, stop)`` is the vector of passage ``start + r``: order never depends on batches or lengths.
- Memory is bounded by one block of passages and its vectors; a shard is written block by block, never joined.
- A vector that is not finite stops the build and its row is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from rag_r1.retrieval.encoder import Encoder
from rag_r1.retrieval.manifest import MANIFEST_FILE, Manifest, Shard
from rag_r1.retrieval.passages import PassageStore

ROWS_PER_SHARD = 2_000_000  # 8.2 GB of float32 at 1024 dimensions
_ROWS_PER_BLOCK = 2_048  # the encoder sorts a block by length, so that its batches hold little padding


def build_embeddings(
    directory: str | Path,
    encoder: Encoder,
    *,
    rows_per_shard: int = ROWS_PER_SHARD,
    on_progress: Callable[[int], object] | None = None,
) -> Manifest:
    """Embed the passages of ``directory``; ``on_progress`` gets the number of rows done since the last call.

    Writes ``embeddings-00000.npy`` ..., each ``(rows, dim)`` float32, and the manifest, which is returned.

    Raises:
        ValueError: no whole number of rows a shard, or a vector with NaN or infinity in it (its row is named).
    """
    if rows_per_shard < 1:
        raise ValueError(f"rows_per_shard must be at least 1, got {rows_per_shard}")
    directory = Path(directory)
    store = PassageStore(directory)
    (directory / MANIFEST_FILE).unlink(missing_ok=True)  # what it promises is about to be overwritten
    passages = iter(store)
    shards: list[Shard] = []
    for start in range(0, len(store), rows_per_shard):
        stop = min(start + rows_per_shard, len(store))
        path = directory / f"embeddings-{len(shards):05d}.npy"
        partial = path.with_name(path.name + ".partial")
        table = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(stop - start, encoder.spec.dim))
        for row in range(start, stop, _ROWS_PER_BLOCK):
            vectors = encoder.encode_passages(list(islice(passages, min(_ROWS_PER_BLOCK, stop - row))))
            check_finite(vectors, first_row=row)
            table[row - start : row - start + len(vectors)] = vectors
            if on_progress:
                on_progress(len(vectors))
        table.flush()
        del table
        os.replace(partial, path)
        shards.append(Shard.of(path, start, stop))
    remove_others(directory, "embeddings-*.npy", shards)
    manifest = Manifest(corpus=store.info(), encoder=encoder.spec, embeddings=tuple(shards))
    manifest.save(directory)
    store.close()
    return manifest


def check_finite(vectors: np.ndarray, *, first_row: int) -> None:
    """Raises ``ValueError`` that names the first row with a NaN or infinity in it."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ValueError(f"the embedding of passage {first_row + bad[0]} is not finite: look at that row of the corpus")


def remove_others(directory: Path, pattern: str, shards: list[Shard]) -> None:
    """Delete shards of an earlier build with more shards than this one."""
    keep = {shard.file for shard in shards}
    for path in directory.glob(pattern):
        if path.name not in keep:
            path.unlink()

"""Shards into one: a directory whose index is a single file, with the same ids and scores.

Invariants:
- Shards are joined in the order of their rows, and each keeps its rows' global ids.
- The shards on disk stay as they were: FAISS empties what it merges from, so that is done to copies in memory.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from rag_r1.retrieval.blas import faiss
from rag_r1.retrieval.files import check_room, partial_path
from rag_r1.retrieval.manifest import Manifest, ManifestError, Shard, check_file
from rag_r1.retrieval.passages import OFFSETS_FILE, PASSAGES_FILE


def merge_index(directory: str | Path, out: str | Path) -> Manifest:
    """Write the merged index of ``directory`` into ``out``, with the corpus beside it (hard links where the disk allows).

    Takes the memory of the whole index and of its largest shard. The embeddings stay where they are.

    Raises:
        ManifestError: shards that are torn or not trained together, or of a kind that FAISS cannot merge (HNSW).
    """
    directory, out = Path(directory), Path(out)
    if out.resolve() == directory.resolve():
        raise ManifestError(f"{out} holds the shards themselves: give another folder for the merged index")
    manifest = Manifest.load(directory)
    manifest.check_complete()
    paths = [check_file(directory, shard, verify_hash=True) for shard in manifest.shards]
    out.mkdir(parents=True, exist_ok=True)
    check_room(out, sum(shard.bytes for shard in manifest.shards), "the merged index")
    merged = faiss.read_index(str(paths[0]))
    for path, shard in zip(paths[1:], manifest.shards[1:], strict=True):
        part = faiss.read_index(str(path))
        inverted = isinstance(merged, faiss.IndexIVF | faiss.IndexPreTransform)
        try:
            # lists keep ids, which must be moved; flat codes are numbered by where they stand, and FAISS wants 0
            merged.merge_from(part, shard.start if inverted else 0)
        except RuntimeError as error:
            raise ManifestError(
                f"FAISS cannot merge {path} (kind {manifest.kind}): {error}. Build the index again with one shard "
                "instead: build_embeddings.py --shards 1"
            ) from error
    if merged.ntotal != manifest.corpus.rows:
        raise ManifestError(f"merging gave {merged.ntotal} rows, the corpus has {manifest.corpus.rows}")
    path = out / "index-00000.faiss"
    faiss.write_index(merged, str(partial_path(path)))
    os.replace(partial_path(path), path)
    for name in (PASSAGES_FILE, OFFSETS_FILE):
        (out / name).unlink(missing_ok=True)
        try:
            os.link(directory / name, out / name)
        except OSError:  # another disk, or one without links
            shutil.copyfile(directory / name, out / name)
    manifest = replace(manifest, embeddings=(), shards=(Shard.of(path, 0, manifest.corpus.rows),))
    manifest.save(out)
    return manifest

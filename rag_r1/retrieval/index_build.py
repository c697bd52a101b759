"""Third stage of a build: embeddings -> FAISS shards ``index-00000.faiss`` ..., and the manifest is complete.

Invariants:
- Trained once, on a sample of the whole corpus (the same rows every time); every shard starts from that.
- Memory is one shard plus one block of vectors: room is made before vectors are added, so nothing doubles as it grows.
- A finished shard is noted; the same command after a kill goes on with the next. On one thread an unbroken build gives the same
  bytes; more threads may link an HNSW graph in another order. After a finished build of the same kind it does nothing.
- The embeddings are read and never changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from rag_r1.retrieval.blas import faiss, use_matrix_products
from rag_r1.retrieval.embeddings import read_embeddings, remove_others
from rag_r1.retrieval.files import check_room, partial_path, read_json, write_json
from rag_r1.retrieval.index_report import measure
from rag_r1.retrieval.kinds import KINDS, factory_of, index_bytes, training_rows
from rag_r1.retrieval.manifest import Manifest, ManifestError, Shard, check_cover, check_file
from rag_r1.retrieval.vectors import VectorFile

_JOB_FILE = "index.job.json"
_TRAINED_FILE = "index.trained"
_ROWS_PER_BLOCK = 16_384
_SEED = 0

Advance = Callable[[int], object]


def build_index(
    directory: str | Path,
    kind: str = "flat",
    *,
    recall: float = 0.95,
    queries: np.ndarray | None = None,
    on_progress: Advance | None = None,
) -> Manifest:
    """Index the embeddings of ``directory``, shard for shard, and complete the manifest with a report.

    Args:
        kind: one of ``kinds.KINDS`` or a FAISS factory string.
        recall: search parameters are the cheapest whose recall@3 against the flat index reaches this.
        queries: ``(n, dim)`` float32 to measure with; by default 1,000 passages, each looking for its neighbours.
        on_progress: gets the number of rows added since the last call.

    Raises:
        ManifestError: embeddings that are missing, torn, or not those of the corpus.
        ValueError: a factory string that FAISS does not know.
    """
    directory = Path(directory)
    manifest = Manifest.load(directory)
    if manifest.encoder is None or not manifest.embeddings:
        raise ManifestError(f"{directory} has no embeddings: run scripts/build_corpus/build_embeddings.py")
    check_cover(manifest.embeddings, manifest.corpus.rows)
    advance = on_progress or (lambda _: None)
    largest = max(shard.stop - shard.start for shard in manifest.embeddings)
    dim = manifest.encoder.dim
    factory = factory_of(kind, dim, largest)
    if (manifest.kind, manifest.factory) == (kind, factory) and manifest.shards:
        for shard in manifest.shards:
            check_file(directory, shard, verify_hash=False)
        advance(manifest.corpus.rows)
        return manifest

    for source in manifest.embeddings:
        check_file(directory, source, verify_hash=False)
    job = {"kind": kind, "factory": factory, "embeddings": [asdict(shard) for shard in manifest.embeddings]}
    shards = _resume(directory, job)
    if not shards:
        size = index_bytes(kind, manifest.corpus.rows, dim) if kind in KINDS else 0
        check_room(directory, size, f"the index ({kind}) of {manifest.corpus.rows} passages")
    manifest = replace(manifest, shards=(), kind=kind, factory=factory, search={}, report={})
    manifest.save(directory)
    trained = directory / _TRAINED_FILE
    start = time.perf_counter()
    use_matrix_products(dim)
    for number, source in enumerate(manifest.embeddings):
        if number < len(shards):
            advance(source.stop - source.start)
            continue
        table = VectorFile.open(check_file(directory, source, verify_hash=True))
        if not trained.is_file():
            _train(directory, manifest, trained)
        index = faiss.read_index(str(trained))
        _add(index, table, advance)
        path = directory / f"index-{number:05d}.faiss"
        faiss.write_index(index, str(partial_path(path)))
        os.replace(partial_path(path), path)
        shards.append(Shard.of(path, source.start, source.stop))
        write_json(directory / _JOB_FILE, {"job": job, "shards": [asdict(shard) for shard in shards]})
        table.close()
        del index
    build_s = time.perf_counter() - start

    first = read_embeddings(directory, manifest, np.zeros(1, np.int64))[0]
    manifest = replace(manifest, shards=tuple(shards), first_vector=tuple(round(float(value), 6) for value in first))
    search, report = measure(directory, manifest, recall=recall, queries=queries)
    manifest = replace(manifest, search=search, report={**report, "build_s": round(build_s, 1)})
    remove_others(directory, "index-*.faiss*", shards)
    manifest.save(directory)
    for name in (_JOB_FILE, _TRAINED_FILE):
        (directory / name).unlink(missing_ok=True)
    return manifest


def _resume(directory: Path, job: dict[str, Any]) -> list[Shard]:
    """The shards that an interrupted build of the same job has finished."""
    noted = read_json(directory / _JOB_FILE)
    if noted and noted["job"] == job:
        return [Shard(**shard) for shard in noted["shards"]]
    (directory / _TRAINED_FILE).unlink(missing_ok=True)
    write_json(directory / _JOB_FILE, {"job": job, "shards": []})
    return []


def _train(directory: Path, manifest: Manifest, path: Path) -> None:
    """Write an empty index that is trained on a sample of all shards."""
    assert manifest.encoder is not None
    try:
        index = faiss.index_factory(manifest.encoder.dim, manifest.factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(
            f"kind {manifest.kind!r} is none of {', '.join(KINDS)}, and FAISS cannot make an index of "
            f"{manifest.factory!r} for dimension {manifest.encoder.dim}: {error}"
        ) from error
    inverted = _inverted_file(index)
    if hasattr(inverted, "do_polysemous_training"):
        # orders the codes for a Hamming filter that nobody asks for here, and takes most of the training's time
        inverted.do_polysemous_training = False
    if not index.is_trained:
        index.train(_sample(directory, manifest, training_rows(manifest.factory, manifest.corpus.rows)))
    faiss.write_index(index, str(partial_path(path)))
    os.replace(partial_path(path), path)


def _sample(directory: Path, manifest: Manifest, count: int) -> np.ndarray:
    """``count`` vectors in runs of 64, evenly spread with a fixed seed: few long reads rather than many short ones."""
    run, rows = 64, manifest.corpus.rows
    starts = np.sort(np.random.default_rng(_SEED).permutation(np.arange(0, rows, run))[: -(-count // run)])
    chosen = (starts[:, None] + np.arange(run)).ravel()
    return read_embeddings(directory, manifest, chosen[chosen < rows])


def _add(index: Any, table: VectorFile, advance: Advance) -> None:
    rows = table.shape[0]
    inverted = _inverted_file(index)
    if inverted is not None and inverted is not index:
        for _, block in _blocks(table):  # a transform in front: FAISS applies it as it adds
            index.add(block)
            advance(len(block))
        return
    if inverted is not None:
        _add_to_lists(index, table, advance)
        return
    flat: Any = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSW) else index
    if hasattr(flat, "codes"):
        flat.codes.resize(rows * flat.code_size)  # reserve
        flat.codes.resize(0)
    for _, block in _blocks(table):
        index.add(block)
        advance(len(block))


def _add_to_lists(index: Any, table: VectorFile, advance: Advance) -> None:
    """Assign first, then make each list as long as it will be, then add."""
    lists = np.empty(table.shape[0], np.int64)
    for start, block in _blocks(table):
        lists[start : start + len(block)] = index.quantizer.search(block, 1)[1][:, 0]
    for number, count in enumerate(np.bincount(lists, minlength=index.nlist)):
        index.invlists.resize(number, int(count))
        index.invlists.resize(number, 0)
    for start, block in _blocks(table):
        ids = np.arange(start, start + len(block), dtype=np.int64)
        own = np.ascontiguousarray(lists[start : start + len(block)])
        index.add_core(len(block), faiss.swig_ptr(block), faiss.swig_ptr(ids), faiss.swig_ptr(own))
        advance(len(block))


def _blocks(table: VectorFile) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, table.shape[0], _ROWS_PER_BLOCK):
        yield start, np.ascontiguousarray(table.read(start, min(start + _ROWS_PER_BLOCK, table.shape[0])))


def _inverted_file(index: Any) -> Any:
    """The IVF index itself or the one behind a transform; None where there is none."""
    if isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    return index if isinstance(index, faiss.IndexIVF) else None

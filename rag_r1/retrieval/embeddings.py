"""Second stage of a build: the vector of every passage, in ``.npy`` shards.

Invariants:
- Row r of shard ``[start, stop)`` is the vector of passage ``start + r``: order never depends on batches or lengths.
- Memory is bounded by one block of passages and its vectors.
- A block that is written is marked as done, after it is on the disk; the same command after a kill goes on with the blocks
  that are not, and gives the same bytes. After a finished build of the same corpus and encoder it does nothing.
- A vector that is not finite stops the build and its row is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rag_r1.retrieval.encoder import Encoder, EncoderSpec
from rag_r1.retrieval.files import check_room, partial_path, read_json, write_json
from rag_r1.retrieval.manifest import MANIFEST_FILE, Manifest, ManifestError, Shard, check_file
from rag_r1.retrieval.passages import PassageStore
from rag_r1.retrieval.vectors import VectorFile

ROWS_PER_SHARD = 2_000_000  # 8.2 GB of float32 at 1024 dimensions
ROWS_PER_BLOCK = 2_048  # the encoder sorts a block by length, so that its batches hold little padding
_JOB_FILE = "embeddings.job.json"
_DONE_FILE = "embeddings.done"


class EmbeddingJob:
    """The books of one build: which blocks are to do, where their vectors go, and when it is finished.

    Whoever embeds (this process, or workers on many GPUs) takes ``blocks``, and gives each to ``write`` in any order.
    """

    def __init__(
        self,
        directory: str | Path,
        spec: EncoderSpec,
        *,
        rows_per_shard: int = ROWS_PER_SHARD,
        shards: int | None = None,
        dtype: str = "float32",
    ) -> None:
        """Args: ``shards`` cuts the corpus into that many even parts, in place of ``rows_per_shard``."""
        self.directory = Path(directory)
        store = PassageStore(self.directory)
        self._corpus = store.info()
        store.close()
        rows = self._corpus.rows
        if shards is not None:
            if not 1 <= shards <= rows:
                raise ValueError(f"shards must be between 1 and the {rows} passages, got {shards}")
            rows_per_shard = -(-rows // shards)
        if rows_per_shard < 1 or dtype not in ("float32", "float16"):
            raise ValueError(
                f"rows_per_shard must be at least 1 and dtype float32 or float16: {rows_per_shard}, {dtype}"
            )
        self._spec = spec
        self._dtype = dtype
        self._cuts = [(start, min(start + rows_per_shard, rows)) for start in range(0, rows, rows_per_shard)]
        self._blocks = [
            (start, min(start + ROWS_PER_BLOCK, stop))
            for first, stop in self._cuts
            for start in range(first, stop, ROWS_PER_BLOCK)
        ]
        self._number_of = {block: number for number, block in enumerate(self._blocks)}
        self._files: dict[int, VectorFile] = {}
        self._done = bytearray(len(self._blocks))
        self.manifest = self._finished()
        if self.manifest is None:
            self._start_or_resume()

    @property
    def rows(self) -> int:
        return self._corpus.rows

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """``[start, stop)`` of each block that is still to do; none when the build is finished."""
        return [] if self.manifest else [b for b, done in zip(self._blocks, self._done, strict=True) if not done]

    def write(self, block: tuple[int, int], vectors: np.ndarray) -> None:
        """Keep the ``(stop - start, dim)`` vectors of a block. Raises ``ValueError`` for NaN, infinity, or another shape."""
        start, stop = block
        if vectors.shape != (stop - start, self._spec.dim):
            raise ValueError(f"{vectors.shape} vectors for passages {start} to {stop} of dimension {self._spec.dim}")
        check_finite(vectors, first_row=start)
        if self._dtype == "float16":
            with np.errstate(over="ignore"):
                check_finite(vectors.astype(np.float16), first_row=start)
        shard = next(n for n, (first, last) in enumerate(self._cuts) if first <= start < last)
        if shard not in self._files:
            self._files[shard] = VectorFile.open(partial_path(self._path(shard)), write=True)
        self._files[shard].write(start - self._cuts[shard][0], vectors)
        number = self._number_of[block]
        self._done[number] = 1
        with (self.directory / _DONE_FILE).open("r+b") as marks:
            marks.seek(number)
            marks.write(b"\1")
            marks.flush()
            os.fsync(marks.fileno())

    def finish(self) -> Manifest:
        """Give the shards their names and write the manifest. Raises ``ManifestError`` while blocks are to do."""
        if self.manifest is not None:
            return self.manifest
        if self.blocks:
            raise ManifestError(f"{len(self.blocks)} blocks of {self.directory} have no embeddings yet")
        shards = []
        for number, (start, stop) in enumerate(self._cuts):
            if number in self._files:
                self._files.pop(number).close()
            path = self._path(number)
            if partial_path(path).exists():  # else renamed before a kill
                os.replace(partial_path(path), path)
            shards.append(Shard.of(path, start, stop))
        remove_others(self.directory, "embeddings-*.npy*", shards)
        self.manifest = Manifest(corpus=self._corpus, encoder=self._spec, embeddings=tuple(shards))
        self.manifest.save(self.directory)
        for name in (_JOB_FILE, _DONE_FILE):
            (self.directory / name).unlink(missing_ok=True)
        return self.manifest

    def _path(self, shard: int) -> Path:
        return self.directory / f"embeddings-{shard:05d}.npy"

    def _finished(self) -> Manifest | None:
        """The manifest of an earlier run, if it has these embeddings and they are there."""
        try:
            manifest = Manifest.load(self.directory)
            for shard in manifest.embeddings:
                file = VectorFile.open(check_file(self.directory, shard, verify_hash=False))
                file.close()
                if str(file.dtype) != self._dtype:
                    return None
        except (OSError, ValueError):
            return None
        cuts = [(shard.start, shard.stop) for shard in manifest.embeddings]
        return manifest if (manifest.corpus, manifest.encoder, cuts) == (self._corpus, self._spec, self._cuts) else None

    def _start_or_resume(self) -> None:
        job = {
            "corpus": asdict(self._corpus),
            "encoder": asdict(self._spec),
            "dtype": self._dtype,
            "cuts": [list(cut) for cut in self._cuts],
        }
        marks = self.directory / _DONE_FILE
        (self.directory / MANIFEST_FILE).unlink(missing_ok=True)  # what it promises is about to be overwritten
        if read_json(self.directory / _JOB_FILE) == job and marks.is_file():
            self._done = bytearray(marks.read_bytes())
            return
        (self.directory / _JOB_FILE).unlink(missing_ok=True)
        remove_others(self.directory, "embeddings-*.npy*", [])
        item = np.dtype(self._dtype).itemsize
        check_room(self.directory, self.rows * self._spec.dim * item, f"embedding {self.rows} passages")
        for number, (start, stop) in enumerate(self._cuts):
            VectorFile.create(partial_path(self._path(number)), stop - start, self._spec.dim, self._dtype).close()
        marks.write_bytes(bytes(len(self._blocks)))
        write_json(self.directory / _JOB_FILE, job)


def build_embeddings(
    directory: str | Path,
    encoder: Encoder,
    *,
    rows_per_shard: int = ROWS_PER_SHARD,
    shards: int | None = None,
    dtype: str = "float32",
    on_progress: Callable[[int], object] | None = None,
) -> Manifest:
    """Embed the passages of ``directory`` in this process; ``on_progress`` gets the rows done since the last call.

    Writes ``embeddings-00000.npy`` ..., each ``(rows, dim)`` of ``dtype``, and the manifest, which is returned.

    Raises:
        ValueError: no whole number of rows a shard, or a vector with NaN or infinity in it (its row is named).
    """
    job = EmbeddingJob(directory, encoder.spec, rows_per_shard=rows_per_shard, shards=shards, dtype=dtype)
    advance = on_progress or (lambda _: None)
    to_do = job.blocks
    advance(job.rows - sum(stop - start for start, stop in to_do))
    store = PassageStore(directory)
    for start, stop in to_do:
        job.write((start, stop), encoder.encode_passages(store.get(range(start, stop))))
        advance(stop - start)
    store.close()
    return job.finish()


def read_embeddings(directory: Path, manifest: Manifest, rows: np.ndarray) -> np.ndarray:
    """The vectors of ``rows`` (global, ascending) as ``(len(rows), dim)`` float32; neighbours are read together."""
    assert manifest.encoder is not None
    vectors = np.empty((len(rows), manifest.encoder.dim), np.float32)
    filled = 0
    for shard in manifest.embeddings:
        own = rows[(rows >= shard.start) & (rows < shard.stop)] - shard.start
        table = VectorFile.open(directory / shard.file)
        for run in np.split(own, np.flatnonzero(np.diff(own) != 1) + 1) if len(own) else ():
            vectors[filled : filled + len(run)] = table.read(int(run[0]), int(run[-1]) + 1)
            filled += len(run)
        table.close()
    return vectors


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

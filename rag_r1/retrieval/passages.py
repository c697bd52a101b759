"""The passages on disk: ``passages.tsv`` and the byte offset of each of its rows.

A row is ``id<TAB>contents``, UTF-8, and ``contents`` is "title   text" (three spaces). Invariants:
- id = row number, from 0. The writer gives the ids, so they cannot differ; the store checks them as it reads.
- A passage holds no tab before its contents and no line break at all, so a row is a line.
- Nothing is loaded: a lookup is one positioned read, which any number of threads may do at once. The memory of a
  reader does not grow with what it has read.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from rag_r1.retrieval.files import partial_path, sha256_of

PASSAGES_FILE = "passages.tsv"
OFFSETS_FILE = "passages.offsets.npy"
_OFFSETS_BUFFERED = 65_536


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """What identifies a corpus: its number of rows, and the size in bytes and SHA-256 of ``passages.tsv``."""

    rows: int
    bytes: int
    sha256: str


class PassageWriter:
    """Writes a store in one pass, in constant memory. Both files appear when the block ends well, or not at all.

    After an error the unfinished files stay if ``checkpoint`` was called, so that ``resume`` can go on from there.

    >>> with PassageWriter(directory) as writer:
    ...     writer.write("Ada Lovelace   Ada Lovelace was a mathematician.")
    >>> writer.info.rows
    1
    """

    info: CorpusInfo

    def __init__(self, directory: Path) -> None:
        self._paths = (directory / PASSAGES_FILE, directory / OFFSETS_FILE)
        self._digest = hashlib.sha256()
        self._position = 0
        self._rows = 0
        self._offsets = array("q", [0])
        self._resumable = False

    def resume(self, rows: int, size_bytes: int) -> PassageWriter:
        """Go on after a checkpoint: what was written behind it is cut off. Call before the block.

        Raises ``ValueError`` where the unfinished files hold less than that.
        """
        table_bytes = _offsets_header_bytes() + 8 * rows
        for path, size in zip(self._paths, (size_bytes, table_bytes), strict=True):
            partial = partial_path(path)
            if not partial.is_file() or partial.stat().st_size < size:
                raise ValueError(f"{partial} is shorter than its checkpoint of {size} bytes: delete it to start anew")
            os.truncate(partial, size)
        with partial_path(self._paths[0]).open("rb") as file:
            while block := file.read(1 << 20):
                self._digest.update(block)
        self._rows, self._position, self._resumable = rows, size_bytes, True
        self._offsets = array("q", [size_bytes])
        return self

    def __enter__(self) -> PassageWriter:
        self._paths[0].parent.mkdir(parents=True, exist_ok=True)
        mode = "r+b" if self._resumable else "w+b"
        self._text, self._table = (partial_path(path).open(mode) for path in self._paths)
        if not self._resumable:
            self._header_bytes = self._write_header()
        self._header_bytes = _offsets_header_bytes()
        for file in (self._text, self._table):
            file.seek(0, os.SEEK_END)
        return self

    def write(self, contents: str) -> None:
        """Append a passage. Raises ``ValueError`` for one that is blank or holds a line break."""
        if not contents.strip() or "\n" in contents or "\r" in contents:
            raise ValueError(f"passage {self._rows} is blank or holds a line break: {contents[:80]!r}")
        line = f"{self._rows}\t{contents}\n".encode()
        self._text.write(line)
        self._digest.update(line)
        self._position += len(line)
        self._rows += 1
        self._offsets.append(self._position)
        if len(self._offsets) >= _OFFSETS_BUFFERED:
            self._flush_offsets()

    def checkpoint(self) -> tuple[int, int]:
        """Bring everything to the disk; gives (rows, bytes), which ``resume`` takes."""
        last = self._offsets.pop() if self._offsets else None  # the end so far is written again as the next start
        self._flush_offsets()
        if last is not None:
            self._offsets.append(last)
        for file in (self._text, self._table):
            file.flush()
            os.fsync(file.fileno())
        self._resumable = True
        return self._rows, self._position

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush_offsets()
            self._table.seek(0)
            if self._write_header() != self._header_bytes:
                raise RuntimeError("the header of the offsets has no room for the number of rows")
        for file in (self._text, self._table):
            try:
                file.close()
            except OSError:  # a full disk says so once more
                if kind is None:
                    raise
        for path in self._paths:
            if kind is None:
                os.replace(partial_path(path), path)
            elif not self._resumable:
                partial_path(path).unlink()
        self.info = CorpusInfo(self._rows, self._position, self._digest.hexdigest())

    def _write_header(self) -> int:
        npy.write_array_header_1_0(self._table, _offsets_header(self._rows))
        return self._table.tell()

    def _flush_offsets(self) -> None:
        if sys.byteorder == "big":
            self._offsets.byteswap()
        self._table.write(self._offsets.tobytes())
        self._offsets = array("q")


def _offsets_header(rows: int) -> dict[str, Any]:
    # NumPy leaves room in a header for the first axis to grow, so it can be written again in place
    return {"descr": "<i8", "fortran_order": False, "shape": (rows + 1,)}


def _offsets_header_bytes() -> int:
    header = io.BytesIO()
    npy.write_array_header_1_0(header, _offsets_header(0))
    return header.tell()


class PassageStore:
    """Reads passages by id. ``len(store)`` is the number of rows; iterating gives ``contents`` in order."""

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / PASSAGES_FILE
        offsets = self.path.with_name(OFFSETS_FILE)
        for path in (self.path, offsets):
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing: make it with scripts/build_corpus/split_kilt.py")
        self._offsets: np.ndarray = np.load(offsets, mmap_mode="r")  # (rows + 1,) int64, bytes
        self._file: BinaryIO = self.path.open("rb")
        size = os.fstat(self._file.fileno()).st_size
        if size != self._offsets[-1]:
            raise ValueError(
                f"{self.path} has {size} bytes, but {OFFSETS_FILE} was made for {self._offsets[-1]}: "
                "the two files do not belong together, or the corpus is torn. Run split_kilt.py again"
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            for row, line in enumerate(file):
                yield self._contents(row, line)

    def get(self, ids: Iterable[int]) -> list[str]:
        """The contents of each id, in the order asked. Raises ``IndexError`` for an id outside ``[0, rows)``."""
        found = []
        for row in ids:
            if not 0 <= row < len(self):
                raise IndexError(f"passage {row} is not in {self.path}, which has {len(self)} rows")
            start, stop = int(self._offsets[row]), int(self._offsets[row + 1])
            found.append(self._contents(row, os.pread(self._file.fileno(), stop - start, start)))
        return found

    def info(self) -> CorpusInfo:
        """The identity of this corpus; reads the whole file once to hash it."""
        return CorpusInfo(len(self), int(self._offsets[-1]), sha256_of(self.path))

    def close(self) -> None:
        self._file.close()

    def _contents(self, row: int, line: bytes) -> str:
        head, _, contents = line.decode().rstrip("\n").partition("\t")
        if head != str(row):
            raise ValueError(f"{self.path}: row {row} carries id {head[:20]!r}; ids must equal row numbers, from 0")
        return contents

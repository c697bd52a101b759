"""A ``(rows, dim)`` table of vectors on disk: a plain ``.npy`` file, read and written at any row.

Positioned reads and writes instead of a memory map: a map's pages count as memory of the process until the system wants
them back, so a build over a mapped 119 GB looks like, and on some clusters is killed as, one that uses 119 GB.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.lib import format as npy


class VectorFile:
    """Open with ``create`` or ``open``; any number of threads may read and write different rows at once."""

    def __init__(self, path: Path, descriptor: int, data_start: int, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._descriptor, self._data_start = descriptor, data_start
        self._row_bytes = shape[1] * dtype.itemsize

    @classmethod
    def create(cls, path: Path, rows: int, dim: int, dtype: str = "float32") -> VectorFile:
        """A new file with room for every row; ``OSError`` (ENOSPC) where the disk has none."""
        header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (rows, dim)}
        with path.open("wb") as file:
            npy.write_array_header_1_0(file, header)
            data_start = file.tell()
        descriptor = os.open(path, os.O_RDWR)
        size = rows * dim * np.dtype(dtype).itemsize
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, data_start, size)
        else:
            os.ftruncate(descriptor, data_start + size)
        return cls(path, descriptor, data_start, (rows, dim), np.dtype(dtype))

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> VectorFile:
        """An existing file. Raises ``ValueError`` for one that is no table of floats, or is cut short."""
        with path.open("rb") as file:
            if npy.read_magic(file) != (1, 0):
                raise ValueError(f"{path} is not a .npy file of version 1.0")
            shape, fortran, dtype = npy.read_array_header_1_0(file)
            data_start = file.tell()
        if len(shape) != 2 or fortran or dtype.kind != "f":
            raise ValueError(f"{path} holds {dtype} of shape {shape}, expected rows of floats")
        if (size := path.stat().st_size) != (want := data_start + shape[0] * shape[1] * dtype.itemsize):
            raise ValueError(f"{path} has {size} bytes, but its header says {want}: the file is torn")
        return cls(path, os.open(path, os.O_RDWR if write else os.O_RDONLY), data_start, shape, dtype)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``[start, stop)`` as ``(stop - start, dim)`` float32."""
        data = bytearray((stop - start) * self._row_bytes)
        view = memoryview(data)
        position = self._data_start + start * self._row_bytes
        while view:
            done = os.preadv(self._descriptor, [view], position)
            if not done:
                raise ValueError(f"{self.path} ends before row {stop}: the file is torn")
            view, position = view[done:], position + done
        table = np.frombuffer(data, self.dtype).reshape(stop - start, self.shape[1])
        return table.astype(np.float32, copy=False)

    def write(self, start: int, vectors: np.ndarray) -> None:
        """Put ``vectors`` at rows from ``start`` on, and bring them to the disk."""
        if vectors.shape[1] != self.shape[1] or start + len(vectors) > self.shape[0]:
            raise ValueError(f"{vectors.shape} vectors at row {start} do not fit {self.path} of shape {self.shape}")
        view = np.ascontiguousarray(vectors, self.dtype).data.cast("B")
        position = self._data_start + start * self._row_bytes
        while view:
            done = os.pwrite(self._descriptor, view, position)
            view, position = view[done:], position + done
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

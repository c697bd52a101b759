"""FAISS, imported so that a flat search uses the processor: everything here takes ``faiss`` from this file.

Two defaults of the wheel cost a factor of ten on the CPU (figures in docs/benchmarks.md):
- Its OpenBLAS (0.3.15) does not know processors that are newer than itself and takes them for a Prescott of 2004. The
  kernels of the right family are named before it loads; ``OPENBLAS_CORETYPE`` in the environment wins.
- FAISS hands small batches to a loop that is slower than matrix multiplication from a few queries on. The threshold is lowered.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_CORETYPE = "OPENBLAS_CORETYPE"
_QUERIES_FOR_BLAS = 4


def _kernels() -> str | None:
    """The newest family of OpenBLAS kernels that this processor runs; None where it cannot be told."""
    info = Path("/proc/cpuinfo")
    if sys.platform != "linux" or not info.is_file():
        return None
    flags = set(next((line for line in info.read_text().splitlines() if line.startswith("flags")), "").split())
    if {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "SkylakeX"
    return "Haswell" if {"avx2", "fma"} <= flags else None


_named = None if _CORETYPE in os.environ else _kernels()
if _named:
    os.environ[_CORETYPE] = _named
import faiss  # noqa: E402

if _named:
    del os.environ[_CORETYPE]  # of no other library's business, nor of child processes'

__all__ = ["faiss", "use_matrix_products"]


def use_matrix_products(dim: int) -> None:
    """Let FAISS multiply matrices from four queries of ``dim`` numbers on; for the whole process."""
    faiss.cvar.distance_compute_blas_threshold = _QUERIES_FOR_BLAS * dim if _counts_numbers() else _QUERIES_FOR_BLAS


def _counts_numbers() -> bool:
    # since 1.13 or so the threshold counts queries x dimensions, before it counted queries (20 by default)
    return int(faiss.cvar.distance_compute_blas_threshold) > 1000

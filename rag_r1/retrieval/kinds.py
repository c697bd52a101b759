"""The kinds of index: what each is in FAISS's terms, and what it takes before anything is loaded.

| kind     | what is kept of a vector              | search                                             |
| flat     | float32                               | exact                                              |
| sq8      | one byte a dimension                  | every vector, rounded                              |
| ivf_sq8  | one byte a dimension, in clusters     | the nearest ``nprobe`` clusters                    |
| ivf_pq   | one byte for 8 dimensions, in clusters| the nearest clusters; small, and the least exact   |
| hnsw_sq8 | one byte a dimension, and its links   | along a graph; fast on a CPU, slow to build        |

Any other name is taken as a FAISS factory string (github.com/facebookresearch/faiss/wiki/The-index-factory).
"""

from __future__ import annotations

import math
import re

KINDS = ("flat", "sq8", "ivf_sq8", "ivf_pq", "hnsw_sq8")

_POINTS_PER_CENTROID = 40  # FAISS warns below 39; more would take more memory than the index of a shard
_POINTS_PER_CODE = 64  # of 256 in a product quantiser; far more than the ranges of a scalar one need
_HNSW_LINKS = 32
_MOST_CENTROIDS = 65_536


def factory_of(kind: str, dim: int, rows: int) -> str:
    """The FAISS factory string of a kind for shards of ``rows`` vectors.

    >>> factory_of("ivf_sq8", 1024, 1_000_000)
    'IVF4096,SQ8'
    """
    lists = clusters_for(rows)
    return {
        "flat": "Flat",
        "sq8": "SQ8",
        "ivf_sq8": f"IVF{lists},SQ8",
        "ivf_pq": f"IVF{lists},PQ{_codes_for(dim)}",
        "hnsw_sq8": f"HNSW{_HNSW_LINKS},SQ8",
    }.get(kind, kind)


def clusters_for(rows: int) -> int:
    """About four times the square root of the rows (FAISS's own advice), as a power of two that can be trained."""
    wanted = min(4 * math.sqrt(rows), rows / _POINTS_PER_CENTROID, _MOST_CENTROIDS)
    return int(2 ** round(math.log2(max(1.0, wanted))))


def training_rows(factory: str, rows: int) -> int:
    """Vectors to train on: 40 for each cluster, or 64 for each of 256 codes where that is more."""
    clusters = int(found[1]) if (found := re.search(r"IVF(\d+)", factory)) else 0
    return min(rows, max(_POINTS_PER_CENTROID * clusters, _POINTS_PER_CODE * 256))


def bytes_per_vector(kind: str, dim: int) -> int:
    """What one vector takes in the index, in memory as on disk; ``KeyError`` for a factory string."""
    id_bytes = 8
    links = (
        4 * 2 * _HNSW_LINKS + 4 * _HNSW_LINKS // (_HNSW_LINKS - 1) + 12
    )  # lowest level, those above, level and offset
    return {
        "flat": 4 * dim,
        "sq8": dim,
        "ivf_sq8": dim + id_bytes,
        "ivf_pq": _codes_for(dim) + id_bytes,
        "hnsw_sq8": dim + links,
    }[kind]


def index_bytes(kind: str, rows: int, dim: int, *, shards: int = 1) -> int:
    """Size of a whole index in bytes: vectors, and for each shard the centroids and code books."""
    tables = 0
    if kind.startswith("ivf"):
        tables += clusters_for(rows // shards) * dim * 4
    if kind == "ivf_pq":
        tables += 256 * dim * 4
    return rows * bytes_per_vector(kind, dim) + shards * tables


def _codes_for(dim: int) -> int:
    """Bytes of a product-quantised vector: the largest number up to one for 8 dimensions that divides ``dim``."""
    return next(codes for codes in range(max(1, dim // 8), 0, -1) if dim % codes == 0)

"""What each kind of index takes (memory, disk, GPU memory) before anything is built or loaded, and which fit this machine.

python scripts/build_corpus/plan_index.py --rows 29000000 --dim 1024 [--shards 15]
python scripts/build_corpus/plan_index.py --index DIR          rows, dimension and shards from its manifest
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from rag_r1.retrieval import Manifest
from rag_r1.retrieval.embeddings import ROWS_PER_SHARD
from rag_r1.retrieval.files import gigabytes
from rag_r1.retrieval.kinds import KINDS, index_bytes

PASSAGE_BYTES = 640  # of text, KILT's 100 words with title
OFFSET_BYTES = 8
BUILD_OVERHEAD = 1.3  # peak of a build over the shard it is building


def gpu_bytes() -> int:
    """Memory of all GPUs together; 0 without one."""
    import torch

    return sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(torch.cuda.device_count()))


def main() -> None:
    parser = argparse.ArgumentParser(description="What an index takes, by kind.")
    parser.add_argument("--index", type=Path, help="index directory whose manifest tells rows, dimension and shards")
    parser.add_argument("--rows", type=int, help="passages")
    parser.add_argument("--dim", type=int, default=1024, help="of a vector; BGE-large 1024, E5-base 768, MiniLM 384")
    parser.add_argument("--shards", type=int, help="files; default: one for 2,000,000 passages")
    args = parser.parse_args()
    try:
        if args.index:
            manifest = Manifest.load(args.index)
            args.rows, args.shards = manifest.corpus.rows, len(manifest.embeddings or manifest.shards) or None
            args.dim = manifest.encoder.dim if manifest.encoder else args.dim
        if not args.rows or min(args.rows, args.dim, args.shards or 1) < 1:
            raise ValueError("give --index DIR, or --rows N, all at least 1")
    except (OSError, ValueError) as error:
        sys.exit(f"plan_index.py: {error}")
    shards = args.shards or -(-args.rows // ROWS_PER_SHARD)
    text = args.rows * (PASSAGE_BYTES + OFFSET_BYTES)
    vectors = args.rows * args.dim * 4
    ram, disk, gpu = psutil.virtual_memory().available, shutil.disk_usage(args.index or ".").free, gpu_bytes()

    console = Console(width=120)
    console.print(f"{args.rows:,} passages x {args.dim} dimensions in {shards} shards")
    console.print(f"this machine: {gigabytes(ram)} memory and {gigabytes(disk)} disk free, {gigabytes(gpu)} GPU memory")
    console.print(f"disk beside the index: passages about {gigabytes(text)}, embeddings {gigabytes(vectors)} (float32)")
    table = Table(
        "kind", "index = memory to serve", "memory to build", "disk while building", "GPU (fp16)", "fits here"
    )
    for kind in KINDS:
        size = index_bytes(kind, args.rows, args.dim, shards=shards)
        build = int(BUILD_OVERHEAD * size / shards)
        whole = size + text + vectors
        on_gpu = vectors // 2 if kind == "flat" else 0
        fits = ["in memory" if size < ram else "with --mmap" if size + text < disk else "no"]
        fits += ["build"] if build < ram and whole < disk else []
        fits += ["--gpu"] if on_gpu and on_gpu < gpu else []
        cells = (gigabytes(size), gigabytes(build), gigabytes(whole), gigabytes(on_gpu) if on_gpu else "-")
        table.add_row(kind, *cells, ", ".join(fits))
    console.print(table)


if __name__ == "__main__":
    main()

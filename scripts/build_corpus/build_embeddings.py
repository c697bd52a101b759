"""Stage 2 of an index: passages -> embeddings-00000.npy ... and the manifest.

python scripts/build_corpus/build_embeddings.py --index DIR [--encoder BAAI/bge-large-en-v1.5 | minilm | ...]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from rag_r1.retrieval import PassageStore, SentenceEncoder, build_embeddings
from rag_r1.retrieval.embeddings import ROWS_PER_SHARD
from rag_r1.retrieval.encoder import DEFAULT_ENCODER


def main() -> None:
    parser = argparse.ArgumentParser(description="Embed the passages: stage 2 of an index.")
    parser.add_argument("--index", type=Path, required=True, help="index directory with passages.tsv")
    parser.add_argument("--encoder", default=DEFAULT_ENCODER, help='hub name, folder, or "minilm" (needs no hub)')
    parser.add_argument("--family", help="bge, e5 or minilm, for a folder whose name does not tell")
    parser.add_argument("--device", help="torch device; default: a GPU if there is one")
    parser.add_argument("--precision", choices=("auto", "fp16", "fp32"), default="auto", help="auto: fp16 on a GPU")
    parser.add_argument("--batch-size", type=int, default=64, help="passages in one forward pass")
    parser.add_argument("--rows-per-shard", type=int, default=ROWS_PER_SHARD, help="passages a file")
    args = parser.parse_args()
    try:
        store = PassageStore(args.index)
        rows = len(store)
        store.close()
        encoder = SentenceEncoder(
            args.encoder,
            family=args.family,
            device=args.device,
            precision=args.precision,
            batch_size=args.batch_size,
        )
        with Progress("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("embedding", total=rows)
            manifest = build_embeddings(
                args.index,
                encoder,
                rows_per_shard=args.rows_per_shard,
                on_progress=lambda done: bar.advance(task, done),
            )
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"build_embeddings.py: {error}")
    print(f"{rows} x {encoder.spec.dim} in {len(manifest.embeddings)} shards, encoder {encoder.spec.name}")


if __name__ == "__main__":
    main()

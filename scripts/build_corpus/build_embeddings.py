"""Stage 2 of an index: passages -> embeddings-00000.npy ... and the manifest.

    python scripts/build_corpus/build_embeddings.py --index DIR [--encoder BAAI/bge-large-en-v1.5 | minilm | ...]

With --workers it embeds through Ray Data, one worker a GPU (or CPU core), on as many machines as the Ray cluster has; DIR
must then be on a disk that all of them see. The same command again goes on after a kill.
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
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the vectors on disk")
    parser.add_argument("--rows-per-shard", type=int, default=ROWS_PER_SHARD, help="passages a file")
    parser.add_argument("--shards", type=int, help="files of equal size, in place of --rows-per-shard")
    parser.add_argument("--workers", type=int, help="embed in this many Ray workers instead of this process")
    args = parser.parse_args()
    model = {
        "name": args.encoder,
        "family": args.family,
        "device": args.device,
        "precision": args.precision,
        "batch_size": args.batch_size,
    }
    layout = {"rows_per_shard": args.rows_per_shard, "shards": args.shards, "dtype": args.dtype}
    try:
        store = PassageStore(args.index)
        rows = len(store)
        store.close()
        with Progress("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("embedding", total=rows)
            if args.workers:
                from rag_r1.cluster.embeddings import build_embeddings_on_ray

                manifest = build_embeddings_on_ray(
                    args.index, model, workers=args.workers, on_progress=lambda done: bar.advance(task, done), **layout
                )
            else:
                manifest = build_embeddings(
                    args.index,
                    SentenceEncoder(**model),
                    on_progress=lambda done: bar.advance(task, done),
                    **layout,
                )
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"build_embeddings.py: {error}")
    spec = manifest.encoder
    print(f"{rows} x {spec.dim} in {len(manifest.embeddings)} shards, encoder {spec.name}")


if __name__ == "__main__":
    main()

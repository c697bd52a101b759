"""Stage 3 of an index: embeddings -> FAISS shards index-00000.faiss ..., and the manifest is complete.

    python scripts/build_corpus/build_index.py --index DIR [--kind flat | sq8 | ivf_sq8 | ivf_pq | hnsw_sq8 | FACTORY]

plan_index.py tells what each kind takes. The same command again goes on after a kill.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from rag_r1.retrieval import Manifest, SentenceEncoder, build_index


def main() -> None:
    parser = argparse.ArgumentParser(description="Index the embeddings: stage 3 of an index.")
    parser.add_argument("--index", type=Path, required=True, help="index directory with embeddings and manifest")
    parser.add_argument(
        "--kind", default="flat", help="flat, sq8, ivf_sq8, ivf_pq, hnsw_sq8, or a FAISS factory string"
    )
    parser.add_argument("--recall", type=float, default=0.95, help="recall@3 that the search is tuned to")
    parser.add_argument("--queries", type=Path, help="a question a line, to measure with; default: passages")
    args = parser.parse_args()
    try:
        manifest = Manifest.load(args.index)
        queries = None
        if args.queries and manifest.encoder:
            encoder = SentenceEncoder(manifest.encoder.name, family=manifest.encoder.family)
            queries = encoder.encode_queries([q for q in args.queries.read_text(encoding="utf-8").splitlines() if q])
        with Progress("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("indexing", total=manifest.corpus.rows)
            manifest = build_index(
                args.index,
                args.kind,
                recall=args.recall,
                queries=queries,
                on_progress=lambda done: bar.advance(task, done),
            )
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"build_index.py: {error}")
    report = ", ".join(f"{name} {value}" for name, value in {**manifest.search, **manifest.report}.items())
    shards = len(manifest.shards)
    print(f"index {manifest.index_id}: {manifest.corpus.rows} rows in {shards} shards, {manifest.kind}; {report}")


if __name__ == "__main__":
    main()

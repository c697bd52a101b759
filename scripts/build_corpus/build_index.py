"""Stage 3 of an index: embeddings -> FAISS shards index-00000.faiss ..., and the manifest is complete.

python scripts/build_corpus/build_index.py --index DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from rag_r1.retrieval import Manifest, build_index


def main() -> None:
    parser = argparse.ArgumentParser(description="Index the embeddings: stage 3 of an index.")
    parser.add_argument("--index", type=Path, required=True, help="index directory with embeddings and manifest")
    args = parser.parse_args()
    try:
        rows = Manifest.load(args.index).corpus.rows
        with Progress("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("indexing", total=rows)
            manifest = build_index(args.index, on_progress=lambda done: bar.advance(task, done))
    except (OSError, ValueError) as error:
        sys.exit(f"build_index.py: {error}")
    print(f"index {manifest.index_id}: {rows} rows in {len(manifest.shards)} shards, {manifest.kind}")


if __name__ == "__main__":
    main()

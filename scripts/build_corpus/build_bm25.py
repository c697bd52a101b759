"""The BM25 index of a corpus, beside or in place of the dense one: passages -> the folder bm25/.

python scripts/build_corpus/build_bm25.py --index DIR

Needs the passages only (split_kilt.py). A build that is there already and fits the corpus is left as it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from rag_r1.retrieval import PassageStore, build_bm25
from rag_r1.retrieval.bm25_build import BUILD_PASSES


def main() -> None:
    parser = argparse.ArgumentParser(description="Index the words of the passages.")
    parser.add_argument("--index", type=Path, required=True, help="index directory with passages.tsv")
    args = parser.parse_args()
    try:
        rows = len(PassageStore(args.index))
        with Progress("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("indexing words", total=BUILD_PASSES * rows)
            card = build_bm25(args.index, on_progress=lambda done: bar.advance(task, done))
    except (OSError, ValueError) as error:
        sys.exit(f"build_bm25.py: {error}")
    size_mb = sum(file.bytes for file in card.files) / 1e6
    print(f"bm25 index {card.index_id}: {rows} rows, {size_mb:.1f} MB")


if __name__ == "__main__":
    main()

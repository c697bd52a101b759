"""Stage 1 of an index: pages -> 100-word passages (passages.tsv and its offsets).

    python scripts/build_corpus/split_kilt.py --source kilt_knowledgesource.json --index DIR

Takes KILT pages, FlashRAG or Search-R1 JSON lines, and TSV rows of ready passages; see rag_r1/retrieval/corpus.py.
The same command again goes on after a kill, and does nothing once it has finished.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from rag_r1.retrieval import split_corpus
from rag_r1.retrieval.corpus import WORDS_PER_PASSAGE

SMALL_SOURCE_BYTES = 64 << 20  # read sooner than workers start


def main() -> None:
    parser = argparse.ArgumentParser(description="Cut pages into passages: stage 1 of an index.")
    parser.add_argument("--source", type=Path, required=True, help="JSON lines, or .tsv of ready passages")
    parser.add_argument("--index", type=Path, required=True, help="index directory; made if it is not there")
    parser.add_argument("--words", type=int, default=WORDS_PER_PASSAGE, help="words a passage")
    parser.add_argument("--repeat-title", action="store_true", help="keep KILT's title paragraph, as the original does")
    parser.add_argument("--workers", type=int, help="processes that parse; default: one a core, one for a small source")
    args = parser.parse_args()
    try:
        size = args.source.stat().st_size
        workers = args.workers or (1 if size < SMALL_SOURCE_BYTES else max(1, len(os.sched_getaffinity(0)) - 1))
        with Progress("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("splitting", total=size)
            report = split_corpus(
                args.source,
                args.index,
                words_per_passage=args.words,
                repeat_title=args.repeat_title,
                workers=workers,
                on_progress=lambda done: bar.advance(task, done),
            )
    except (OSError, ValueError) as error:
        sys.exit(f"split_kilt.py: {error}")
    print(f"{report.pages} pages ({report.empty_pages} empty) -> {report.corpus.rows} passages in {args.index}")


if __name__ == "__main__":
    main()

"""Join the shards of an index into one file, in a folder of its own; the shards stay as they are.

python scripts/build_corpus/merge_index.py --index DIR --out MERGED
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rag_r1.retrieval import merge_index


def main() -> None:
    parser = argparse.ArgumentParser(description="Join the shards of an index into one.")
    parser.add_argument("--index", type=Path, required=True, help="index directory with shards")
    parser.add_argument("--out", type=Path, required=True, help="new index directory")
    args = parser.parse_args()
    try:
        manifest = merge_index(args.index, args.out)
    except (OSError, ValueError) as error:
        sys.exit(f"merge_index.py: {error}")
    print(f"index {manifest.index_id}: {manifest.corpus.rows} rows in one shard, {manifest.kind}, in {args.out}")


if __name__ == "__main__":
    main()

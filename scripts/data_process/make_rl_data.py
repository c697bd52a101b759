"""Questions (RAG-R1 JSON, FlashRAG JSONL or parquet) -> a parquet file for training, for both modes.

    python scripts/data_process/make_rl_data.py data/RL/hotpotqa_train_filter_mq/train_data.json data/train.parquet \\
        --exclude data/RL/hotpotqa_train_filter_mq/test_data.json

Prints one line that identifies the data: sources, split, rows, repeated questions, hash.
"""

from __future__ import annotations

import argparse

from rag_r1.data import check_parquet, describe, name_and_split, read_questions, without_questions_of, write_parquet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help=".json, .jsonl or .parquet file with question and golden_answers")
    parser.add_argument("output", help="parquet file to write")
    parser.add_argument("--data-source", help="name of the data set (default: from the input's path)")
    parser.add_argument("--split", help="name of the split (default: from the input's path, else the output's)")
    parser.add_argument(
        "--exclude", metavar="FILE", help="leave out the questions of this file, e.g. the validation set"
    )
    args = parser.parse_args()
    try:
        rows = read_questions(args.input, data_source=args.data_source)
        if args.exclude:
            before = len(rows)
            rows = without_questions_of(rows, read_questions(args.exclude))
            print(f"left out {before - len(rows)} of {before} questions that are also in {args.exclude}")
        split = args.split or name_and_split(args.input)[1] or name_and_split(args.output)[1]
        write_parquet(rows, args.output, split=split)
        check_parquet(args.output)
        print(f"{args.output}: {describe(rows, split)}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()

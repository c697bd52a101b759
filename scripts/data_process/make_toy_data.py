"""The toy encyclopedia with everything that the quickstart needs, a function of the seed.

    python scripts/data_process/make_toy_data.py --out outputs/toy --seed 0

Writes into the folder:
    pages.jsonl        the encyclopedia of training and held-out questions, as KILT pages: index and serve this one
    train.parquet      questions for PPO
    heldout.parquet    questions for evaluation; none of their entities occurs in train.parquet
    policy/            the tiny policy, random, with its tokenizer
    sft_index/         pages and index of a third, larger world, which the teacher searches
    sft.jsonl          the teacher's demonstrations in that world
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from rag_r1.data import write_parquet
from rag_r1.retrieval import LocalRetriever, SentenceEncoder, build_embeddings, build_index, split_corpus
from rag_r1.toyworld.curriculum import Recipe, sft_rows
from rag_r1.toyworld.policy import build_policy
from rag_r1.toyworld.questions import KINDS, make_questions
from rag_r1.toyworld.tokenizer import build_tokenizer
from rag_r1.toyworld.world import World, build_worlds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another world")
    parser.add_argument("--train-per-kind", type=int, default=600, help="PPO questions of each kind")
    parser.add_argument("--heldout-per-kind", type=int, default=250, help="held-out questions of each kind")
    parser.add_argument("--without-sft", action="store_true", help="no demonstrations (they take most of the time)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    worlds = build_worlds(args.seed)
    train, heldout = worlds["rl_train"], worlds["rl_heldout"]
    write_lines(args.out / "pages.jsonl", [*train.pages(), *heldout.pages()])
    write_parquet(questions(train, args.train_per_kind, args.seed), args.out / "train.parquet")
    write_parquet(questions(heldout, args.heldout_per_kind, args.seed), args.out / "heldout.parquet")

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(args.out / "policy")
    policy = build_policy(tokenizer, args.seed)
    policy.save_pretrained(args.out / "policy")
    print(f"policy of {policy.num_parameters():,} parameters, {len(tokenizer)} tokens")

    if not args.without_sft:
        retriever = index_world(worlds["sft"], args.out / "sft_index")
        with Progress(TextColumn("demonstrations {task.completed}"), TimeElapsedColumn()) as bar:
            task = bar.add_task("", total=None)
            rows = asyncio.run(
                sft_rows(worlds["sft"], retriever, Recipe(), args.seed, lambda done: bar.advance(task, done))
            )
        retriever.close()
        write_lines(args.out / "sft.jsonl", rows)
    print(f"{args.out}: {len(train.entities)} + {len(heldout.entities)} pages for PPO and evaluation")


def questions(world: World, per_kind: int, seed: int) -> list[Any]:
    return make_questions(world, dict.fromkeys(KINDS, per_kind), seed)


def index_world(world: World, folder: Path) -> LocalRetriever:
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "pages.jsonl", world.pages())
    rows = split_corpus(folder / "pages.jsonl", folder).corpus.rows
    encoder = SentenceEncoder("minilm")
    with Progress() as bar:
        task = bar.add_task(f"embedding {rows} pages for the teacher", total=rows)
        build_embeddings(folder, encoder, on_progress=lambda done: bar.advance(task, done))
    build_index(folder)
    return LocalRetriever.open(folder, encoder)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


if __name__ == "__main__":
    main()

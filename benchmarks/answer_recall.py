"""Answer recall of dense, BM25 and hybrid retrieval: how often a golden answer stands in the first k passages of a question.

    python benchmarks/answer_recall.py --data ../shared/data --work DIR

``--data`` holds kilt_slice.tsv and eval/*.jsonl. The index is built in ``--work`` if it is not there; embedding the
11,103 passages took up to 40 minutes on one shared core, and goes on after a kill. Prints Markdown.

A golden answer counts where its words stand in the passage one after the other, both normalised as for the EM reward. The
questions are asked as they are, in one search, so what a second search would bring is not in the figures. "Yes" and "no" stand in
passages by chance, hence a second table without the questions that have such an answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from rag_r1.data.readers import read_questions
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.intervals import bootstrap_interval, paired_difference
from rag_r1.retrieval import (
    Bm25Retriever,
    HybridRetriever,
    LocalRetriever,
    PassageStore,
    Searcher,
    SentenceEncoder,
    build_bm25,
    build_embeddings,
    build_index,
    split_corpus,
)
from rag_r1.retrieval.bm25_build import BUILD_PASSES
from rag_r1.rewards import normalise

DATA_SETS = {"HotpotQA": "hotpotqa", "2WikiMultiHopQA": "2wikimultihopqa", "Bamboogle": "bamboogle"}
DEPTHS = (3, 10)
DENSE, HYBRID = "dense (MiniLM)", "hybrid"


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    with Progress("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def build(source: Path, work: Path) -> dict[str, Searcher]:
    rows = split_corpus(source, work).corpus.rows
    with progress("BM25", BUILD_PASSES * rows) as advance:
        build_bm25(work, on_progress=advance)
    encoder = SentenceEncoder("minilm")
    with progress("embeddings", rows) as advance:
        build_embeddings(work, encoder, on_progress=advance)
    build_index(work)
    dense, bm25 = LocalRetriever.open(work, encoder), Bm25Retriever.open(work)
    return {DENSE: dense, "BM25": bm25, HYBRID: HybridRetriever([dense, bm25])}


def is_closed(question: QuestionRow) -> bool:
    return any(normalise(gold) in ("yes", "no") for gold in question.golden_answers)


class Answers:
    """Where golden answers stand: every passage is normalised once, with a blank at each end."""

    def __init__(self, work: Path) -> None:
        self._texts = [f" {normalise(passage)} " for passage in PassageStore(work)]

    def in_passage(self, id: int, golds: list[str]) -> bool:
        return any(f" {gold} " in self._texts[id] for gold in golds)

    def in_corpus(self, golds: list[str]) -> bool:
        return any(self.in_passage(id, golds) for id in range(len(self._texts)))


def first_rank(answers: Answers, searcher: Searcher, questions: list[QuestionRow]) -> dict[str, int]:
    """Of each question, by id: the rank, from 1, of the first passage with an answer; beyond all depths where there is none."""
    ranks = {}
    for question, hits in zip(questions, searcher.find([q.question for q in questions], max(DEPTHS)), strict=True):
        golds = [normalise(gold) for gold in question.golden_answers]
        found = (rank for rank, hit in enumerate(hits, start=1) if answers.in_passage(hit.id, golds))
        ranks[question.id] = next(found, max(DEPTHS) + 1)
    return ranks


def percent(mean: float, low: float, high: float, *, sign: str = "") -> str:
    return f"{100 * mean:{sign}.1f} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def print_table(
    title: str, questions: dict[str, list[QuestionRow]], ranks: dict[str, dict[str, int]], answers: Answers
) -> None:
    print(f"\n{title}\n")
    print("| questions | n | retriever | " + " | ".join(f"answer recall@{k}, %" for k in DEPTHS) + " |")
    print("| --- | ---: | --- | " + " | ".join("---:" for _ in DEPTHS) + " |")
    for name, rows in questions.items():
        hits = {
            searcher: {k: {row.id: float(found[row.id] <= k) for row in rows} for k in DEPTHS}
            for searcher, found in ranks.items()
        }
        for searcher, by_depth in hits.items():
            values = [list(by_depth[k].values()) for k in DEPTHS]
            cells = [percent(sum(v) / len(v), *bootstrap_interval(v)) for v in values]
            print(f"| {name} | {len(rows)} | {searcher} | " + " | ".join(cells) + " |")
        gains = [paired_difference(hits[DENSE][k], hits[HYBRID][k])[:3] for k in DEPTHS]
        print(f"| {name} | {len(rows)} | hybrid - dense | " + " | ".join(percent(*g, sign="+") for g in gains) + " |")
        there = sum(answers.in_corpus([normalise(gold) for gold in row.golden_answers]) for row in rows) / len(rows)
        print(
            f"| {name} | {len(rows)} | anywhere in the corpus | "
            + " | ".join([f"{100 * there:.1f}"] * len(DEPTHS))
            + " |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer recall of dense, BM25 and hybrid retrieval.")
    parser.add_argument("--data", type=Path, required=True, help="folder with kilt_slice.tsv and eval/")
    parser.add_argument("--work", type=Path, required=True, help="folder for the index; used again if it is there")
    args = parser.parse_args()
    searchers = build(args.data / "kilt_slice.tsv", args.work)
    answers = Answers(args.work)
    questions = {name: read_questions(args.data / "eval" / f"{file}.jsonl") for name, file in DATA_SETS.items()}
    everything = [row for rows in questions.values() for row in rows]
    ranks = {name: first_rank(answers, searcher, everything) for name, searcher in searchers.items()}
    print_table("All questions; in brackets 95 % bootstrap intervals over questions.", questions, ranks, answers)
    open_ones = {name: [row for row in rows if not is_closed(row)] for name, rows in questions.items()}
    print_table("Without the questions whose answer is yes or no.", open_ones, ranks, answers)


if __name__ == "__main__":
    main()

"""What a log must say about a data set, and keeping validation questions out of training.

Two users who report the same card trained on the same questions. Of the published multi-query files, 123 of 351
validation questions are also in the training file; `without_questions_of` takes such questions out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from rag_r1.data.rows import QuestionRow


@dataclass(frozen=True, slots=True)
class DatasetCard:
    """`duplicates` counts rows whose question stood in an earlier row; `digest` is of questions and golden answers."""

    sources: tuple[str, ...]
    split: str
    rows: int
    duplicates: int
    digest: str

    def __str__(self) -> str:
        return (
            f"{'+'.join(self.sources)} [{self.split or 'no split'}]: {self.rows} rows, "
            f"{self.duplicates} repeated questions, sha256 {self.digest}"
        )


def describe(rows: Sequence[QuestionRow], split: str = "") -> DatasetCard:
    """The card of `rows`. The digest depends on questions, golden answers and their order, not on the file format."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(orjson.dumps([row.question, row.golden_answers]))
    return DatasetCard(
        sources=tuple(sorted({row.data_source for row in rows})),
        split=split,
        rows=len(rows),
        duplicates=len(rows) - len({_key(row) for row in rows}),
        digest=digest.hexdigest()[:16],
    )


def without_questions_of(rows: Iterable[QuestionRow], others: Iterable[QuestionRow]) -> list[QuestionRow]:
    """`rows` whose question, case and white space apart, is none of `others`."""
    excluded = {_key(row) for row in others}
    return [row for row in rows if _key(row) not in excluded]


def _key(row: QuestionRow) -> str:
    return " ".join(row.question.casefold().split())

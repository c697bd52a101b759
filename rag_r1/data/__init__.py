"""Question data: rows, readers for the files of this field, the training parquet in verl's schema, and checks."""

from __future__ import annotations

from rag_r1.data.cards import DatasetCard, describe, without_questions_of
from rag_r1.data.parquet import check_parquet, write_parquet
from rag_r1.data.readers import name_and_split, read_questions
from rag_r1.data.rows import DataError, QuestionRow, golden_list

__all__ = [
    "DataError",
    "DatasetCard",
    "QuestionRow",
    "check_parquet",
    "describe",
    "golden_list",
    "name_and_split",
    "read_questions",
    "without_questions_of",
    "write_parquet",
]

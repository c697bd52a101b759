"""Read questions from the files of this field; the suffix says which.

    .json      RAG-R1: a list of {"question", "golden_answers": str}
    .jsonl     FlashRAG: a line each, {"id", "question", "golden_answers": [str], "metadata"};
               R1-Searcher's "answer" in place of "golden_answers" is read, too
    .parquet   verl's schema (see `parquet`)

Names follow the path: `hotpotqa_train_filter/train_data.json` and `hotpotqa_train_filter_train.json` are the split
"train" of the data source "hotpotqa_train_filter", `eval/bamboogle.jsonl` is "bamboogle". Rows without an id get
`source:split:row`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import orjson

from rag_r1.data.parquet import read_parquet
from rag_r1.data.rows import DataError, QuestionRow, golden_list

_SPLIT = re.compile(r"(?:^|[_-])(?P<split>train|dev|test|val|validation)(?:_data)?$")


def read_questions(path: str | PathLike[str], data_source: str | None = None) -> list[QuestionRow]:
    """Every question of the file, in its order.

    Args:
        path: a `.json`, `.jsonl` or `.parquet` file.
        data_source: name for rows that carry none; from the path where not given.

    Raises:
        DataError: unknown suffix, broken JSON, or a row that cannot be used, by file, row, key and value.
        OSError: the file cannot be read.
    """
    path = Path(path)
    named, split = name_and_split(path)
    source = data_source or named
    rows = []
    for i, record in enumerate(_records(path)):
        row = _row(path, i, record, source, ":".join(filter(None, (source, split, str(i)))))
        for key, value, what in row.problems():
            raise DataError.at(path, i, key, value, what)
        rows.append(row)
    return rows


def name_and_split(path: str | PathLike[str]) -> tuple[str, str]:
    """The data source and the split that a path names; the split is "" where it names none."""
    path = Path(path)
    found = _SPLIT.search(path.stem)
    if not found:
        return path.stem, ""
    return path.stem[: found.start()] or path.absolute().parent.name, found["split"]


def _records(path: Path) -> Iterable[object]:
    if path.suffix == ".parquet":
        return read_parquet(path)
    if path.suffix == ".jsonl":
        return _json_lines(path)
    if path.suffix == ".json":
        records = _loads(path, None, path.read_bytes())
        if not isinstance(records, list):
            raise DataError.at(path, None, "file", type(records).__name__, "a JSON list of questions is needed")
        return records
    raise DataError.at(path, None, "suffix", path.suffix, "questions are read from .json, .jsonl and .parquet")


def _json_lines(path: Path) -> Iterator[object]:
    with path.open("rb") as file:
        for i, line in enumerate(line for line in file if line.strip()):
            yield _loads(path, i, line)


def _loads(path: Path, row: int | None, text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DataError.at(path, row, "json", text[:80], f"not valid JSON: {error}") from error


def _row(path: Path, index: int, record: object, source: str, default_id: str) -> QuestionRow:
    if not isinstance(record, dict):
        raise DataError.at(path, index, "row", record, "a JSON object with question and golden_answers is needed")
    golds_key = "answer" if "golden_answers" not in record and "answer" in record else "golden_answers"
    for key in ("question", golds_key):
        if key not in record:
            raise DataError.at(path, index, key, None, f"key is missing; there are {', '.join(record)}")
    try:
        golds = golden_list(record[golds_key])
    except ValueError as error:
        raise DataError.at(path, index, golds_key, record[golds_key], str(error)) from error
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise DataError.at(path, index, "metadata", metadata, "a JSON object is needed")
    return QuestionRow(
        id=_id(record, default_id),
        question=record["question"],
        golden_answers=golds,
        data_source=record.get("data_source", source),
        # HotpotQA and 2WikiMultiHopQA keep their question types in FlashRAG's metadata
        kind=str(record.get("kind") or metadata.get("type") or ""),
        metadata=metadata,
    )


def _id(record: dict[str, Any], default: str) -> str:
    found = next((record[key] for key in ("id", "idx") if record.get(key) is not None), default)
    return str(found)

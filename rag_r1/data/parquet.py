"""The training file: parquet in the schema of verl, one row a question.

`prompt` holds the raw question as one user message; the protocol renders it when the rollout starts, so one file serves
single- and multi-query mode. `reward_model.ground_truth.target` holds the golden answers. `metadata` is JSON text, so
rows of any metadata share one schema and read back as they were written.

`check_parquet` accepts more than `write_parquet` writes: files of other projects in the same schema, without the
columns that only this project reads, and with a null `extra_info`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rag_r1.data.rows import DataError, QuestionRow, golden_list, golden_problems, text_problems

ABILITY = "fact-reasoning"
AGENT_NAME = "rag_r1"
"""verl picks the agent loop that is registered under this name."""
REQUIRED = ("data_source", "prompt", "reward_model")
"""Columns without which training cannot start."""
OPTIONAL = ("id", "question", "golden_answers", "kind", "extra_info", "metadata")

_STRINGS = pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("golden_answers", _STRINGS),
        ("data_source", pa.string()),
        ("kind", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.struct([("target", _STRINGS)]))])),
        ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string()), ("id", pa.string())])),
        ("metadata", pa.string()),
        ("agent_name", pa.string()),
    ]
)


def write_parquet(rows: Sequence[QuestionRow], path: str | PathLike[str], split: str | None = None) -> None:
    """Write `rows` to `path`, whole or not at all; `split` is the file's stem ("train", "test") where not given.

    Raises:
        DataError: no rows, or a row with a blank question, data source or id, or without a golden answer.
    """
    path = Path(path)
    if not rows:
        raise DataError.at(path, None, "rows", 0, "there is nothing to write; check the input and what was excluded")
    for i, row in enumerate(rows):
        for key, value, what in row.problems():
            raise DataError.at(path, i, key, value, what)
    split = path.stem if split is None else split
    table = pa.Table.from_pylist([_record(row, i, split) for i, row in enumerate(rows)], schema=SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        pq.write_table(table, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_parquet(path: str | PathLike[str]) -> Iterator[dict[str, Any]]:
    """Rows of a parquet file in verl's schema as dictionaries with the keys of `QuestionRow`, defaults for nulls.

    Raises:
        DataError: not parquet, or a required column is missing.
    """
    for record in _records(Path(path)):
        messages = record["prompt"] or [{}]
        extra = record.get("extra_info") or {}
        golds = record.get("golden_answers")
        yield {
            "id": record.get("id") or extra.get("id"),
            "question": record.get("question") or messages[-1].get("content"),
            "golden_answers": _target(record["reward_model"]) if golds is None else golds,
            "data_source": record["data_source"],
            "kind": record.get("kind") or "",
            "metadata": _metadata(record.get("metadata")),
        }


def check_parquet(path: str | PathLike[str]) -> int:
    """The number of rows, if every row can be trained on.

    Raises:
        DataError: names the first row, key and value that cannot, or the column that is missing.
    """
    path = Path(path)
    count = 0
    for record in _records(path):
        for key, value, what in _record_problems(record):
            raise DataError.at(path, count, key, value, what)
        count += 1
    if not count:
        raise DataError.at(path, None, "rows", 0, "the file has no rows")
    return count


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise DataError.at(path, None, "format", str(error), "this is not a parquet file") from error
    with file:
        columns = file.schema_arrow.names
        for key in REQUIRED:
            if key not in columns:
                raise DataError.at(path, None, key, None, f"column is missing; there are {', '.join(columns)}")
        wanted = [key for key in (*REQUIRED, *OPTIONAL) if key in columns]
        for batch in file.iter_batches(columns=wanted):
            yield from batch.to_pylist()


def _record_problems(record: dict[str, Any]) -> Iterator[tuple[str, object, str]]:
    yield from text_problems("data_source", record["data_source"])
    messages = record["prompt"]
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        yield "prompt", messages, "a list of chat messages is needed, the question as the last one"
    else:
        yield from text_problems("prompt[-1].content", messages[-1].get("content"))
    yield from golden_problems("reward_model.ground_truth.target", _target(record["reward_model"]))


def _target(reward_model: object) -> object:
    """`reward_model["ground_truth"]["target"]`, None where it is not there."""
    found = reward_model
    for key in ("ground_truth", "target"):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _metadata(value: object) -> object:
    """JSON text as `write_parquet` writes it; anything else is handed on as it is, null as {}."""
    return orjson.loads(value) if isinstance(value, str) and value else value or {}


def _record(row: QuestionRow, index: int, split: str) -> dict[str, Any]:
    golds = golden_list(row.golden_answers)
    return {
        "id": row.id,
        "question": row.question,
        "golden_answers": golds,
        "data_source": row.data_source,
        "kind": row.kind,
        "prompt": [{"role": "user", "content": row.question}],
        "ability": ABILITY,
        "reward_model": {"style": "rule", "ground_truth": {"target": golds}},
        "extra_info": {"index": index, "split": split, "id": row.id},
        "metadata": orjson.dumps(row.metadata).decode(),
        "agent_name": AGENT_NAME,
    }

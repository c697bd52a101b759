"""One question of a data set, and what golden answers may look like in files.

Invariant: a `QuestionRow` that was read or written has a question, at least one golden answer and a data source, none
of them blank. What breaks this is refused with file, row, key and value, before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import orjson


class DataError(ValueError):
    """A file that does not hold what it should. The message names file, row (0-based), key and value."""

    @classmethod
    def at(cls, path: str | PathLike[str], row: int | None, key: str, value: object, what: str) -> DataError:
        """The error of one value; `row` is None where the file as a whole is meant, `what` says what to do."""
        where = f"{path}" if row is None else f"{path}: row {row}"
        return cls(f"{where}: {key}={_shorten(value)}: {what}")


@dataclass(slots=True)
class QuestionRow:
    """A question with its answers.

    `kind` groups questions in reports (single_hop, bridge, comparison ...; empty where unknown). `metadata` is
    JSON-able and travels along unread.
    """

    id: str
    question: str
    golden_answers: list[str]
    data_source: str
    kind: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """(key, value, what to do) of every field that breaks the invariant."""
        yield from text_problems("id", self.id)
        yield from text_problems("question", self.question)
        yield from golden_problems("golden_answers", self.golden_answers)
        yield from text_problems("data_source", self.data_source)


def text_problems(key: str, value: object) -> Iterator[tuple[str, object, str]]:
    """A problem unless `value` is a string with more than white space in it."""
    if not isinstance(value, str) or not value.strip():
        yield key, value, "a non-empty string is needed"


def golden_problems(key: str, value: object) -> Iterator[tuple[str, object, str]]:
    """A problem unless `golden_list` finds at least one golden answer in `value`."""
    try:
        golds = golden_list(value)
    except ValueError as error:
        yield key, value, str(error)
        return
    if not golds:
        yield key, value, "at least one golden answer is needed; without one no answer can be right"


def golden_list(value: object) -> list[str]:
    """Golden answers as a list, whatever form a file or a data frame gave them.

    A list, tuple or array of strings; one string ("Paris" -> ["Paris"]); a string that is a JSON list of strings; None
    and NaN -> []. Blank entries, which nothing can match, are left out. "1998" and "[sic]" stay as they are.

    Raises:
        ValueError: anything else, e.g. numbers: how they would be written is not ours to guess.
    """
    if value is None or (isinstance(value, float) and value != value):
        return []
    if isinstance(value, str):
        value = _json_list(value) or [value]
    elif hasattr(value, "tolist"):  # a numpy array, also of dimension 0
        return golden_list(value.tolist())
    if not isinstance(value, (list, tuple)) or not all(isinstance(gold, str) for gold in value):
        raise ValueError("golden answers must be a string or a list of strings")
    return [gold for gold in value if gold.strip()]


def _json_list(text: str) -> list[str] | None:
    if not text.lstrip().startswith("["):
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, list) and all(isinstance(gold, str) for gold in found) else None


def _shorten(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"

"""Answers that were found before: exact, bounded by bytes in memory, and kept on disk where a file is named.

Invariants:
- An answer belongs to (index id, query, topk). Another index, or the same one searched with other parameters, has another id,
  so a stale answer cannot come back.
- Queries are the same when they differ in whitespace only. Case is kept: "us" and "US" have different neighbours.
- The memory bound counts queries and passages as Python holds them, in bytes. The file only grows, and may be deleted while no
  server uses it.
- A file that can no longer be read or written (a full disk) is told in the log and left alone; memory goes on.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
from cachetools import LRUCache

from rag_r1.retrieval.types import Passage

_log = logging.getLogger(__name__)
_FORMAT = 0x52523101  # PRAGMA user_version of our files; another layout of the table gets another number
_ENTRY_BYTES = 500  # of Python objects around a query and its list
_PASSAGE_BYTES = 200

Answer = Sequence[Passage]
Key = tuple[str, int]  # (query, topk)


def normalised(query: str) -> str:
    """What two spellings of one query have in common.

    >>> normalised("  who wrote   Hamlet? ")
    'who wrote Hamlet?'
    """
    return " ".join(query.split())


class AnswerCache:
    """Not for several threads at once: it belongs to the event loop of a server.

    Args:
        max_bytes: of the part in memory.
        file: SQLite file of the part on disk; made if it is not there. ``ValueError`` for one that is no cache.
    """

    def __init__(self, index_id: str, max_bytes: int = 256 << 20, file: str | Path | None = None) -> None:
        self._index_id = index_id
        # the key's text stands in the value too, because getsizeof sees nothing else
        self._memory: LRUCache[Key, tuple[str, Answer]] = LRUCache(max_bytes, getsizeof=_size)
        self._file = file
        self._disk = _open(Path(file)) if file is not None else None

    def get(self, query: str, topk: int) -> Answer | None:
        key = (normalised(query), topk)
        _, found = self._memory.get(key, (key, None))
        if found is None and self._disk is not None:
            wanted = "SELECT answer FROM answers WHERE index_id = ? AND query = ? AND topk = ?"
            try:
                row = self._disk.execute(wanted, (self._index_id, *key)).fetchone()
            except sqlite3.Error as error:
                self._without_disk(error)
                row = None
            if row:
                found = [Passage(*fields) for fields in orjson.loads(row[0])]
                self._remember(key, found)
        return found

    def put(self, answers: dict[Key, Answer]) -> None:
        """Keep answers, in one transaction where there is a file."""
        kept = {(normalised(query), topk): answer for (query, topk), answer in answers.items()}
        for key, answer in kept.items():
            self._remember(key, answer)
        if self._disk is not None:
            rows = [
                (self._index_id, *key, orjson.dumps([(p.id, p.contents, p.score) for p in answer]))
                for key, answer in kept.items()
            ]
            try:
                with self._disk:
                    self._disk.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
            except sqlite3.Error as error:
                self._without_disk(error)

    @property
    def bytes(self) -> int:
        """Of the part in memory."""
        return int(self._memory.currsize)

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def _without_disk(self, error: sqlite3.Error) -> None:
        _log.error("the answer cache %s is no longer used (%s): answers are kept in memory only", self._file, error)
        self.close()
        self._disk = None

    def _remember(self, key: Key, answer: Answer) -> None:
        entry = (key[0], answer)
        if _size(entry) <= self._memory.maxsize:
            self._memory[key] = entry


def _size(entry: tuple[str, Answer]) -> int:
    query, answer = entry
    # getsizeof, not len: a character of Chinese takes two bytes
    texts = sum(_PASSAGE_BYTES + sys.getsizeof(passage.contents) for passage in answer)
    return _ENTRY_BYTES + sys.getsizeof(query) + texts


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = sqlite3.connect(path, check_same_thread=False, timeout=10)
        return _prepare(connection)
    except sqlite3.Error as error:
        raise ValueError(f"{path} is no answer cache ({error}): delete it, or name another file") from error


def _prepare(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT and (version or connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise sqlite3.DatabaseError("it holds something else")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")  # a cache may lose its end, not its order
        connection.execute(
            "CREATE TABLE IF NOT EXISTS answers (index_id TEXT, query TEXT, topk INTEGER, answer BLOB, "
            "PRIMARY KEY (index_id, query, topk)) WITHOUT ROWID"
        )
        connection.execute(f"PRAGMA user_version={_FORMAT}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection

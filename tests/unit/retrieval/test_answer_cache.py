"""The cache: bounded, exact, and never an answer of another index."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rag_r1.retrieval.cache import AnswerCache
from rag_r1.retrieval.types import Passage


def answer(name: str, chars: int = 10) -> list[Passage]:
    return [Passage(7, name + "é" * chars, 0.123456789012345)]


def test_it_keeps_the_last_used_within_its_bytes() -> None:
    cache = AnswerCache("index", max_bytes=10_000)
    for n in range(100):
        cache.put({(f"q{n}", 3): answer(str(n), 1_000)})
        assert cache.get("q0", 3) == answer("0", 1_000), "what is used stays"
        assert cache.bytes <= 10_000
    assert cache.get("q1", 3) is None and cache.get("q99", 3) is not None
    cache.put({("huge", 3): answer("x", 20_000)})
    assert cache.get("huge", 3) is None and cache.get("q0", 3) is not None, "what does not fit drives nothing out"


def test_the_bytes_are_those_of_any_script_and_of_long_queries() -> None:
    cache = AnswerCache("index", max_bytes=100_000)
    for n in range(200):
        cache.put({("x" * 4_000 + str(n), 3): [Passage(n, "東京" * 500, 0.5)]})
    kept = [n for n in range(200) if cache.get("x" * 4_000 + str(n), 3)]
    assert 10 < len(kept) < 17, "2 kB of Chinese and 4 kB of query each"


def test_queries_differ_by_words_case_and_topk_but_not_by_whitespace() -> None:
    cache = AnswerCache("index")
    cache.put({("who  wrote it?", 3): answer("a")})
    assert cache.get(" who wrote\tit? ", 3) == answer("a")
    assert cache.get("Who wrote it?", 3) is None and cache.get("who wrote it?", 4) is None


def test_the_file_outlives_the_server_and_serves_its_own_index_only(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "answers.sqlite"
    first = AnswerCache("one", file=file)
    first.put({("q", 3): answer("one"), ("東京", 3): []})
    first.close()
    again, other = AnswerCache("one", file=file), AnswerCache("two", file=file)
    assert again.get("q", 3) == answer("one") and again.get("東京", 3) == [] and again.get("r", 3) is None
    assert other.get("q", 3) is None


def test_a_file_of_something_else_is_told_and_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TABLE answers (mine TEXT)")
    before = file.read_bytes()
    for path in (file, tmp_path):  # a folder is none either
        with pytest.raises(ValueError, match=f"{path} is no answer cache .*: delete it"):
            AnswerCache("index", file=path)
    assert file.read_bytes() == before


def test_a_file_that_is_no_cache_is_told(tmp_path: Path) -> None:
    file = tmp_path / "answers.sqlite"
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(ValueError, match=r"answers\.sqlite is no answer cache .*: delete it"):
        AnswerCache("index", file=file)


def test_a_disk_that_fails_is_told_and_memory_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = AnswerCache("index", file=tmp_path / "answers.sqlite")
    assert cache._disk is not None
    cache._disk.execute("PRAGMA max_page_count = 3")  # what a full disk looks like to SQLite
    for n in range(20):
        cache.put({(f"q{n}", 3): answer(str(n), 1_000)})
    assert "is no longer used (database or disk is full)" in caplog.text and len(caplog.records) == 1
    assert cache.get("q19", 3) == answer("19", 1_000) and cache.get("never asked", 3) is None

"""BM25: the formula, what is a hit, and what belongs together."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bm25s.stopwords import STOPWORDS_EN

from rag_r1.retrieval import Bm25Retriever, PassageStore, RetrievalClient, Retriever, build_bm25
from rag_r1.retrieval.bm25 import Rules
from rag_r1.retrieval.bm25_build import BUILD_PASSES
from rag_r1.retrieval.manifest import ManifestError
from rag_r1.retrieval.passages import PassageWriter
from rag_r1.retrieval.settings import ServerSettings

TEXTS = [
    "Ada Lovelace   Ada Lovelace was a mathematician in London.",
    "Antonín Dvořák   Dvořák wrote a symphony, 東京, in 1893.",
    "Malcolm X   Malcolm X spoke in London and in New York, New York.",
    "The   It was to be or not to be.",
    "Twin   a compiler in London",
    "Twin   a compiler in London",
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(texts: list[str] = TEXTS, name: str = "index") -> Path:
        with PassageWriter(tmp_path / name) as writer:
            for text in texts:
                writer.write(text)
        return tmp_path / name

    return make


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in STOPWORDS_EN]


def brute_force(texts: list[str], query: str, k1: float = 0.9, b: float = 0.4) -> dict[int, float]:
    """Lucene's BM25, as Kamphuis et al. (ECIR 2020) write it, by id, without the zeros."""
    counts = [Counter(words(text)) for text in texts]
    mean = sum(sum(count.values()) for count in counts) / len(texts)
    scores = dict.fromkeys(range(len(texts)), 0.0)
    for word in words(query):
        having = sum(word in count for count in counts)
        idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for id, count in enumerate(counts):
            length = 1 - b + b * sum(count.values()) / mean
            scores[id] += idf * count[word] / (count[word] + k1 * length)
    return {id: score for id, score in scores.items() if score}


@pytest.mark.parametrize(
    "query", ["Who was a mathematician in London?", "New York New", "compiler X 1893", "Dvořák 東京"]
)
def test_scores_are_those_of_the_formula(write: Callable[..., Path], query: str) -> None:
    directory = write()
    build_bm25(directory)
    hits = Bm25Retriever.open(directory).find([query], 10)[0]
    expected = brute_force(TEXTS, query)
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5) and expected
    assert [hit.id for hit in hits] == sorted(expected, key=lambda id: (-round(expected[id], 6), id))
    assert [hit.contents for hit in hits] == [TEXTS[hit.id] for hit in hits]


def test_on_real_passages_the_best_ten_are_those_of_the_formula(shared_data: Path, write: Callable[..., Path]) -> None:
    lines = (shared_data / "kilt_slice.tsv").read_text(encoding="utf-8").splitlines()[:300]
    texts = [line.partition("\t")[2] for line in lines]
    build_bm25(directory := write(texts))
    retriever = Bm25Retriever.open(directory)
    for query in ("1970 Swedish drama film directed by Vilgot Sjöman", "When was the second son of Louis XIV born?"):
        expected = sorted(brute_force(texts, query).values(), reverse=True)[:10]
        assert [hit.score for hit in retriever.find([query], 10)[0]] == pytest.approx(expected, abs=1e-5)


def test_case_124_questions_get_their_own_answers(write: Callable[..., Path]) -> None:
    build_bm25(directory := write())
    retriever = Bm25Retriever.open(directory)
    assert isinstance(retriever, Retriever)
    queries = ["symphony", "mathematician", "symphony"]
    found = asyncio.run(retriever.search(queries, 1))
    assert [[hit.id for hit in hits] for hits in found] == [[1], [0], [1]]
    assert found == retriever.find(queries, 1) == [retriever.find([query], 1)[0] for query in queries]
    assert set(retriever.stage_s) == {"bm25", "read"}
    retriever.close()


def test_case_118_what_shares_no_word_is_no_hit(write: Callable[..., Path]) -> None:
    build_bm25(directory := write())
    retriever = Bm25Retriever.open(directory)
    found = retriever.find(["", " ", "quasar zebra", "the and of", "compiler"], 100)
    assert [[hit.id for hit in hits] for hits in found] == [[], [], [], [], [4, 5]]
    assert retriever.find([], 3) == []
    with pytest.raises(ValueError, match="topk"):
        retriever.find(["compiler"], 0)


def test_equal_scores_are_cut_by_id(write: Callable[..., Path]) -> None:
    build_bm25(directory := write(["same words here"] * 50 + ["other text there"]))
    retriever = Bm25Retriever.open(directory)
    for topk in (1, 7, 49, 50, 51, 10_000):
        assert [hit.id for hit in retriever.find(["same words"], topk)[0]] == list(range(min(topk, 50)))


def test_building_again_does_nothing_until_something_differs(write: Callable[..., Path]) -> None:
    directory = write()
    done: list[int] = []
    card = build_bm25(directory, on_progress=done.append)
    assert sum(done) == BUILD_PASSES * len(TEXTS)
    data = directory / "bm25" / "data.csc.index.npy"
    first = data.stat().st_ino
    assert build_bm25(directory) == card and data.stat().st_ino == first
    other = build_bm25(directory, rules=Rules(k1=1.2, b=0.75))
    assert other.index_id != card.index_id and data.stat().st_ino != first
    hits = Bm25Retriever.open(directory).find(["London"], 10)[0]
    assert {hit.id: hit.score for hit in hits} == pytest.approx(brute_force(TEXTS, "London", 1.2, 0.75), abs=1e-5)
    data.write_bytes(data.read_bytes()[:-1])
    assert build_bm25(directory) == card, "a torn file is made again, with the rules that were asked for"
    assert sorted(path.name for path in directory.iterdir()) == ["bm25", "passages.offsets.npy", "passages.tsv"]


def test_the_rest_of_a_killed_build_is_replaced(write: Callable[..., Path]) -> None:
    directory = write()
    left = directory / "bm25.partial"
    left.mkdir()
    (left / "data.csc.index.npy").write_bytes(b"half")
    (left / "old.npy").write_bytes(b"x")
    card = build_bm25(directory)
    assert not left.exists() and not (directory / "bm25" / "old.npy").exists()
    assert {file.file for file in card.files} | {"card.json"} == {path.name for path in (directory / "bm25").iterdir()}


def test_case_125_another_corpus_is_refused(write: Callable[..., Path]) -> None:
    build_bm25(directory := write())
    sha256 = PassageStore(directory).info().sha256
    write(TEXTS[:-1])
    for verify in (True, False):
        with pytest.raises(ManifestError, match=r"rows 5.* rows 6"):
            Bm25Retriever.open(directory, verify_hashes=verify)
    write([text.replace("Ada", "Eda") for text in TEXTS])
    with pytest.raises(ManifestError, match=f"sha256.*{sha256}"):
        Bm25Retriever.open(directory)


def test_torn_and_foreign_files_are_refused(write: Callable[..., Path]) -> None:
    directory = write()
    with pytest.raises(FileNotFoundError, match=r"build_bm25\.py"):
        Bm25Retriever.open(directory)
    build_bm25(directory)
    card, data = directory / "bm25" / "card.json", directory / "bm25" / "data.csc.index.npy"
    told: dict[str, Any] = json.loads(card.read_text())
    for change, message in [
        ({"format": 9}, "format 9"),
        ({"bm25s": "0.1"}, r"bm25s 0\.1"),
        ({"rules": {"no": 1}}, "cannot be read"),
    ]:
        card.write_text(json.dumps(told | change))
        with pytest.raises(ManifestError, match=message):
            Bm25Retriever.open(directory)
    card.write_text(json.dumps(told))
    whole = data.read_bytes()
    for damaged, message in [(whole[:-4], "bytes"), (whole[:-1] + bytes([whole[-1] ^ 1]), "SHA-256")]:
        data.write_bytes(damaged)
        with pytest.raises(ManifestError, match=f"data.csc.index.npy.*{message}"):
            Bm25Retriever.open(directory)
    data.unlink()
    with pytest.raises(ManifestError, match=r"data.csc.index.npy is missing"):
        Bm25Retriever.open(directory)


def test_a_corpus_of_stop_words_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="no word"):
        build_bm25(write(["The   it was", "of   and"]))


def test_the_command_builds_and_the_server_serves_it(write: Callable[..., Path], server: Callable[[Any], Any]) -> None:
    directory = write()
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, str(root / "scripts/build_corpus/build_bm25.py"), "--index", str(directory)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=60,
    )
    assert done.returncode == 0 and "6 rows" in done.stdout, done.stderr
    settings = ServerSettings(index=directory, retriever="bm25")
    searcher = settings.open()

    async def ask(url: str) -> list[list[int]]:
        async with RetrievalClient(url) as client:
            found = await client.search(["who wrote a symphony", "", "quasar", "compiler"], 3)
            return [[hit.id for hit in hits] for hits in found]

    with server(settings.app(searcher)) as url:
        assert asyncio.run(ask(url)) == [[1], [], [], [4, 5]]

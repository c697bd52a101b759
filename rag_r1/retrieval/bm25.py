"""BM25 over the passages of an index directory: the words that question and passage share, weighed by how rare they are.

bm25s keeps the weight of every word in every passage, computed at build time, in three arrays that are memory-mapped here:
a search reads the lists of its own words and adds them up. The folder ``bm25/`` of an index directory holds them and
``card.json``, which says what they were made from. Invariants:
- Only what fits is served: corpus, files and the release of bm25s are checked against the card.
- A hit shares a word with its query, so its score is above 0; equal scores are ordered by id, also at the cut at ``topk``.
- Query and passage are cut into words by the same rule, ``Rules``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import bm25s
import numpy as np
from bm25s.tokenization import Tokenizer

from rag_r1.retrieval.blocking import BlockingSearcher
from rag_r1.retrieval.files import read_json, short_id, write_json
from rag_r1.retrieval.manifest import ManifestError, check_corpus, check_file
from rag_r1.retrieval.passages import CorpusInfo, PassageStore
from rag_r1.retrieval.types import Passage

BM25_FOLDER = "bm25"
CARD_FILE = "card.json"
FORMAT = 1
_BUILD_AGAIN = "build it again with scripts/build_corpus/build_bm25.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How words are found and weighed.

    Lucene's variant with the parameters of Anserini, which its authors tuned for passages (bm25s's own defaults are 1.5 and
    0.75). Words are runs of letters and digits in lower case, single characters included ("Malcolm X"), without the 33 English
    stop words of Lucene, and are not stemmed.
    """

    method: str = "lucene"
    k1: float = 0.9
    b: float = 0.4
    words: str = r"\w+"
    stop_words: str = "english"


class Words:
    """Texts in, numbers of their words out; ``numbers`` is the vocabulary, which grows while ``grow`` is set."""

    def __init__(self, rules: Rules, numbers: dict[str, int] | None = None) -> None:
        self._tokenizer = Tokenizer(splitter=rules.words, stopwords=rules.stop_words, stemmer=None)
        self._tokenizer.word_to_id = {} if numbers is None else numbers

    @property
    def numbers(self) -> dict[str, int]:
        found: dict[str, int] = self._tokenizer.word_to_id
        return found

    def of(self, texts: Iterable[str], *, grow: bool = False) -> Iterator[list[int]]:
        """For each text the numbers of its words, in order, with repeats; unknown words are left out unless ``grow``."""
        found: Iterator[list[int]] = self._tokenizer.streaming_tokenize(texts, update_vocab=grow, allow_empty=False)
        return found


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of the folder, its size in bytes and its SHA-256."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25Card:
    """What a BM25 index was made from, and its files."""

    corpus: CorpusInfo
    rules: Rules
    bm25s: str
    """The release that wrote the files; no other is promised to read them."""
    files: tuple[IndexFile, ...]

    @classmethod
    def load(cls, folder: Path) -> Bm25Card:
        """Raises ``FileNotFoundError``, or ``ManifestError`` for a card of another form or format."""
        path = folder / CARD_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: make the BM25 index with scripts/build_corpus/build_bm25.py")
        raw = read_json(path)
        try:
            if raw["format"] != FORMAT:
                raise ManifestError(f"{path} has format {raw['format']}, not {FORMAT}: {_BUILD_AGAIN}")
            return cls(
                corpus=CorpusInfo(**raw["corpus"]),
                rules=Rules(**raw["rules"]),
                bm25s=raw["bm25s"],
                files=tuple(IndexFile(**file) for file in raw["files"]),
            )
        except (KeyError, TypeError) as error:
            raise ManifestError(f"{path} cannot be read ({error!r}): {_BUILD_AGAIN}") from error

    def save(self, folder: Path) -> None:
        write_json(folder / CARD_FILE, {"format": FORMAT, "index_id": self.index_id, **asdict(self)})

    @property
    def index_id(self) -> str:
        """Names what a search can return: equal ids, equal answers."""
        return short_id(asdict(self))

    def check_files(self, folder: Path, *, verify_hash: bool) -> None:
        """Raises ``ManifestError`` that names the file which is missing, torn or another."""
        for file in self.files:
            try:
                check_file(folder, file, verify_hash=verify_hash, listed_in=CARD_FILE)
            except ManifestError as error:
                raise ManifestError(f"{error}: {_BUILD_AGAIN}") from error


class Bm25Retriever(BlockingSearcher):
    """``find`` blocks, ``search`` does the same for asyncio. ``open`` checks and maps the folder that ``build_bm25`` made.

    A search allocates 4 bytes a passage for the scores of one query. ``stage_s`` has "bm25" and "read".
    """

    encoder_name = "bm25"

    def __init__(self, store: PassageStore, index: Any, words: Words, *, index_id: str) -> None:
        super().__init__()
        self.index_id = index_id
        self.rows = len(store)
        self._store, self._index, self._words = store, index, words

    @classmethod
    def open(
        cls, directory: str | Path, *, verify_hashes: bool = True, corpus: CorpusInfo | None = None
    ) -> Bm25Retriever:
        """Args:
            verify_hashes: False skips the SHA-256 of corpus and files (sizes and counts are always checked).
            corpus: what the corpus is, where somebody has hashed it already.

        Raises:
            ManifestError: something does not fit; the message says which value, and what was expected.
        """
        folder = Path(directory) / BM25_FOLDER
        card = Bm25Card.load(folder)
        store = PassageStore(directory)
        unhashed = CorpusInfo(len(store), store.path.stat().st_size, card.corpus.sha256)
        check_corpus(corpus or (store.info() if verify_hashes else unhashed), card.corpus, store.path)
        if card.bm25s != bm25s.__version__:
            raise ManifestError(
                f"{folder} was written by bm25s {card.bm25s}, but {bm25s.__version__} is installed: {_BUILD_AGAIN}"
            )
        card.check_files(folder, verify_hash=verify_hashes)
        index = bm25s.BM25.load(folder, mmap=True)
        return cls(store, index, Words(card.rules, index.vocab_dict), index_id=card.index_id)

    def _find(self, queries: list[str], topk: int) -> list[list[Passage]]:
        start = perf_counter()
        hits = [self._best(numbers, topk) for numbers in self._words.of(queries)]
        found = perf_counter()
        passages = [
            [
                Passage(row, contents, score)
                for (row, score), contents in zip(ranked, self._store.get(row for row, _ in ranked), strict=True)
            ]
            for ranked in hits
        ]
        self.stage_s = {"bm25": found - start, "read": perf_counter() - found}
        return passages

    def _best(self, numbers: list[int], topk: int) -> list[tuple[int, float]]:
        if not numbers:
            return []
        scores = self._index.get_scores_from_ids(numbers)  # (rows,) float32
        rows = np.flatnonzero(scores > 0)
        if len(rows) > topk:
            least = np.partition(scores[rows], -topk)[-topk]
            rows = rows[scores[rows] >= least]  # all that share the last place, so that ids decide among them
        ranked = rows[np.lexsort((rows, -scores[rows]))][:topk]
        return [(int(row), float(scores[row])) for row in ranked]

    def close(self) -> None:
        super().close()
        self._store.close()

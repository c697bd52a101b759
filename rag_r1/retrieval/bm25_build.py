"""The BM25 index of a corpus: ``passages.tsv`` -> the folder ``bm25/``.

Invariants:
- The folder appears whole or not at all: it is made under another name, its card is written last, then it is renamed.
- A folder whose card fits the corpus, the rules and the release of bm25s is left as it is.
- Texts are read one by one and the numbers of their words lie on the disk, so what is in memory is the vocabulary and, in the
  last step, the table of weights that bm25s sorts by word.

For a million passages of 100 words (measured on 0.1 and 0.4 million): 1.3 GB of memory beside the process itself, 0.5 GB of
index, 0.3 GB more of disk while it builds, 200 s of one core. KILT's 29 million so take about 38 GB of memory to build, and 15 GB
of disk, of which memory holds what is used, to serve.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import bm25s
import numpy as np

from rag_r1.retrieval.bm25 import BM25_FOLDER, Bm25Card, IndexFile, Rules, Words
from rag_r1.retrieval.files import check_room, partial_path, sha256_of
from rag_r1.retrieval.manifest import ManifestError
from rag_r1.retrieval.passages import CorpusInfo, PassageStore

BUILD_PASSES = 4
"""Over the corpus: ours, which numbers the words, and three of bm25s, for lengths, frequencies and weights."""

_NUMBERS_FILE = "numbers.tmp"
_BYTES_PER_PASSAGE = 1_000  # numbers and weights of 100 words, with some to spare

_ROWS_PER_REPORT = 1_000

Advance = Callable[[int], object]
Item = TypeVar("Item")


def build_bm25(directory: str | Path, *, rules: Rules | None = None, on_progress: Advance | None = None) -> Bm25Card:
    """Index the passages of ``directory``, in one thread.

    Args:
        on_progress: gets the number of passages done since the last call; each comes ``BUILD_PASSES`` times.

    Raises:
        ValueError: a corpus without a single word, or one that is torn.
        OSError: no such corpus, or no room for the index.
    """
    directory, rules = Path(directory), rules or Rules()
    folder = directory / BM25_FOLDER
    advance = on_progress or (lambda _: None)
    store = PassageStore(directory)
    corpus = store.info()
    if card := _finished(folder, corpus, rules):
        advance(BUILD_PASSES * corpus.rows)
        return card
    check_room(directory, _BYTES_PER_PASSAGE * corpus.rows, f"the BM25 index of {corpus.rows} passages")

    made = partial_path(folder)
    shutil.rmtree(made, ignore_errors=True)  # of a build that was killed
    made.mkdir()
    numbered = NumberedCorpus(made / _NUMBERS_FILE, Words(rules), advance)
    numbered.write(store)
    store.close()
    if not numbered.vocab:
        raise ValueError(f"{store.path} holds no word besides stop words: there is nothing to index")
    index = bm25s.BM25(method=rules.method, k1=rules.k1, b=rules.b, csc_backend="scipy")
    index.index(numbered, create_empty_token=False, show_progress=False)
    index.save(made, show_progress=False)
    (made / _NUMBERS_FILE).unlink()
    files = tuple(
        IndexFile(path.name, path.stat().st_size, sha256_of(path)) for path in sorted(made.iterdir()) if path.is_file()
    )
    card = Bm25Card(corpus=corpus, rules=rules, bm25s=bm25s.__version__, files=files)
    card.save(made)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(made, folder)
    return card


def _finished(folder: Path, corpus: CorpusInfo, rules: Rules) -> Bm25Card | None:
    """The card of an index that is there already, if it is the one that is wanted."""
    try:
        card = Bm25Card.load(folder)
        card.check_files(folder, verify_hash=False)
    except (FileNotFoundError, ManifestError):
        return None
    return card if (card.corpus, card.rules, card.bm25s) == (corpus, rules, bm25s.__version__) else None


class NumberedCorpus:
    """The words of each passage as numbers, in a file: the form in which bm25s takes a corpus (``ids`` and ``vocab``)."""

    def __init__(self, path: Path, words: Words, advance: Advance) -> None:
        self._path, self._words, self._advance = path, words, advance
        self._lengths = array("i")

    def write(self, texts: PassageStore) -> None:
        """Number the words of all texts, 4 bytes a word."""
        with self._path.open("wb") as file:
            for numbers in self._reporting(self._words.of(texts, grow=True)):
                array("i", numbers).tofile(file)
                self._lengths.append(len(numbers))

    @property
    def vocab(self) -> dict[str, int]:
        return self._words.numbers

    @property
    def ids(self) -> NumberedCorpus:
        return self

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[list[int]]:
        with self._path.open("rb") as file:
            for length in self._reporting(self._lengths):
                yield np.fromfile(file, np.intc, length).tolist()

    def _reporting(self, items: Iterable[Item]) -> Iterator[Item]:
        done = 0
        for done, item in enumerate(items, start=1):
            yield item
            if done % _ROWS_PER_REPORT == 0:
                self._advance(_ROWS_PER_REPORT)
        self._advance(done % _ROWS_PER_REPORT)

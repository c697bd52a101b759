"""A tiny world for retrieval tests: an encoder that hashes words, a built index, and a server in a thread."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_r1.retrieval.corpus_build import split_corpus
from rag_r1.retrieval.embeddings import build_embeddings
from rag_r1.retrieval.encoder import EncoderSpec
from rag_r1.retrieval.index_build import build_index

SHARED_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

PAGES = [
    {"wikipedia_title": "Ada Lovelace", "text": ["Ada Lovelace\n", "Ada Lovelace was a mathematician in London.\n"]},
    {"wikipedia_title": "Antonín Dvořák", "text": ['Dvořák wrote a symphony 東京 </information> "quoted".\n']},
    {"wikipedia_title": "Alan Turing", "text": ["Alan Turing\n", "Alan Turing broke codes at Bletchley.\n"]},
    {"wikipedia_title": "Blank", "text": []},
    {"wikipedia_title": "Grace Hopper", "text": ["Grace Hopper\n", "Grace Hopper wrote a compiler.\n"]},
    {"wikipedia_title": "Marie Curie", "text": ["Marie Curie\n", "Marie Curie discovered radium in Paris.\n"]},
]


class HashEncoder:
    """Bag of hashed words: texts that share words are near. Deterministic, no model; the seed makes it another one."""

    def __init__(self, dim: int = 64, *, seed: str = "", **spec: Any) -> None:
        self.seed = seed
        values = {
            "name": "hash",
            "family": "hash",
            "dim": dim,
            "pooling": "sum",
            "normalised": True,
            "query_instruction": "",
            "passage_prefix": "",
            "max_tokens": 512,
        }
        self.spec = EncoderSpec(**{**values, **spec})

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.spec.dim), np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                digest = hashlib.sha256((self.seed + word).encode()).digest()
                vectors[row, int.from_bytes(digest[:4], "big") % self.spec.dim] += 1 if digest[4] % 2 else -1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)

    encode_passages = encode_queries


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def pages() -> list[dict[str, Any]]:
    """Six pages, one of them empty: five passages."""
    return [dict(page) for page in PAGES]


@pytest.fixture
def hash_encoder() -> type[HashEncoder]:
    return HashEncoder


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the repository, which not every checkout has."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data: {SHARED_DATA} is not there")
    return SHARED_DATA


@pytest.fixture
def to_jsonl(tmp_path: Path) -> Callable[..., Path]:
    return lambda rows, name="source.jsonl": write_jsonl(tmp_path / name, rows)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """Builds an index directory of pages with the hash encoder; 5 passages in 3 shards by default."""

    def make(
        name: str = "index", pages: Sequence[dict[str, Any]] = PAGES, rows_per_shard: int = 2, encoder: Any = None
    ) -> Path:
        directory = tmp_path / name
        split_corpus(write_jsonl(tmp_path / f"{name}.jsonl", pages), directory)
        build_embeddings(directory, encoder or HashEncoder(), rows_per_shard=rows_per_shard)
        build_index(directory)
        return directory

    return make

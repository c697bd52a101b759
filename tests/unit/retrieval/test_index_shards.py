"""Embeddings, index shards, and the exact merge over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.retrieval.embeddings import build_embeddings
from rag_r1.retrieval.index import ShardedIndex, merge_topk
from rag_r1.retrieval.index_build import build_index
from rag_r1.retrieval.manifest import Manifest, ManifestError


def flat(vectors: np.ndarray) -> Any:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors, np.float32))
    return index


def sharded(vectors: np.ndarray, cuts: Sequence[int]) -> ShardedIndex:
    edges = [0, *cuts, len(vectors)]
    return ShardedIndex([(a, flat(vectors[a:b])) for a, b in pairwise(edges) if b > a])


def brute_force(vectors: np.ndarray, queries: np.ndarray, topk: int) -> list[list[tuple[int, float]]]:
    scores = queries @ vectors.T
    return [
        [(int(i), float(row[i])) for i in sorted(range(len(row)), key=lambda i: (-row[i], i))[:topk]] for row in scores
    ]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_search_over_shards_is_search_over_one_index_is_brute_force(data: st.DataObject) -> None:
    rows, dim = data.draw(st.integers(1, 30)), 4
    numbers = st.lists(st.integers(-3, 3), min_size=dim, max_size=dim)  # whole numbers: sums are exact, ties are many
    vectors = np.array(data.draw(st.lists(numbers, min_size=rows, max_size=rows)), np.float32)
    queries = np.array(data.draw(st.lists(numbers, min_size=1, max_size=25)), np.float32)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, rows - 1)), max_size=4)))
    topk = data.draw(st.integers(1, 40))
    exact = brute_force(vectors, queries, topk)
    for index in (sharded(vectors, [cut for cut in cuts if cut < rows]), sharded(vectors, [])):
        for query, hits, best in zip(queries, index.search(queries, topk), exact, strict=True):
            assert [score for _, score in hits] == [score for _, score in best]
            assert all(score == float(vectors[row] @ query) for row, score in hits)
            assert hits == sorted(set(hits), key=lambda hit: (-hit[1], hit[0]))
            sure = [hit for hit in best if hit[1] > best[-1][1]]  # of equal scores at the cut, any may stay
            assert hits[: len(sure)] == sure


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_merge_is_the_best_of_all_parts(data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.integers(-2, 2), max_size=20))  # few values: many ties
    ids = data.draw(st.permutations(range(len(columns))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(columns)), max_size=4)))
    topk = data.draw(st.integers(1, 25))
    parts = [
        (np.array([columns[a:b]], np.float32), np.array([ids[a:b]], np.int64))
        for a, b in pairwise([0, *cuts, len(columns)])
    ]
    expected = sorted(zip(ids, map(float, columns), strict=True), key=lambda hit: (-hit[1], hit[0]))[:topk]
    assert merge_topk(parts, topk) == [expected]


def test_merge_drops_filler_and_breaks_ties_by_id() -> None:
    first = (np.array([[0.5, 0.1]], np.float32), np.array([[7, 2]]))
    second = (np.array([[0.5, 0.5, -9e9]], np.float32), np.array([[9, 4, -1]]))
    assert [row for row, _ in merge_topk([first, second], 4)[0]] == [4, 7, 9, 2]
    assert [row for row, _ in merge_topk([first, second], 9)[0]] == [4, 7, 9, 2]


def test_case_108_topk_beyond_the_corpus_gives_its_rows_once() -> None:
    vectors = np.eye(2, dtype=np.float32)
    for index in (sharded(vectors, []), sharded(vectors, [1])):
        (hits,) = index.search(np.array([[1, 0.5]], np.float32), 4)
        assert hits == [(0, 1.0), (1, 0.5)]


def test_case_110_inner_product_order_and_no_other_metric() -> None:
    vectors = np.array([[3, 0], [1, 1]], np.float32)
    query = np.array([[1, 1]], np.float32)
    assert [row for row, _ in sharded(vectors, []).search(query, 2)[0]] == [0, 1]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert [row for row, _ in sharded(unit, []).search(query, 2)[0]] == [1, 0]
    with pytest.raises(ManifestError, match="inner product"):
        ShardedIndex([(0, faiss.IndexFlatL2(2))])


def test_case_113_ids_are_global_over_shards() -> None:
    vectors = np.eye(12, dtype=np.float32)
    index = sharded(vectors, [4, 8])
    assert [hits[0] for hits in index.search(vectors, 1)] == [(row, 1.0) for row in range(12)]


def test_case_114_shards_are_merged_by_their_rows_not_by_name(build: Callable[..., Path], hash_encoder: Any) -> None:
    pages = [{"wikipedia_title": f"Page {n}", "text": [f"unique{n} text"]} for n in range(23)]
    directory = build(pages=pages, rows_per_shard=2)  # twelve shards: 2 comes before 10
    manifest = Manifest.load(directory)
    assert [shard.start for shard in manifest.shards] == list(range(0, 23, 2))
    before = {path: path.read_bytes() for path in directory.glob("index-*.faiss")}
    index = ShardedIndex.open(directory, manifest)
    one = sharded(hash_encoder().encode_passages([f"Page {n}   unique{n} text" for n in range(23)]), [])
    queries = hash_encoder().encode_queries([f"unique{n}" for n in range(23)])
    assert index.rows == one.rows == 23
    for found, expected in zip(index.search(queries, 23), one.search(queries, 23), strict=True):
        assert dict(found) == pytest.approx(dict(expected), abs=1e-6)
    assert {path: path.read_bytes() for path in before} == before, "a search leaves the shards as they are"


def test_the_build_lays_out_the_directory_and_replaces_a_larger_build(build: Callable[..., Path]) -> None:
    directory = build(rows_per_shard=2)
    names = ["embeddings-0000{}.npy", "index-0000{}.faiss"]
    made = {name.format(n) for name in names for n in range(3)}
    assert {path.name for path in directory.iterdir()} == made | {
        "corpus.json",
        "manifest.json",
        "passages.offsets.npy",
        "passages.tsv",
    }
    assert np.load(directory / "embeddings-00002.npy").shape == (1, 64)
    assert build(rows_per_shard=100) == directory
    assert [path.name for path in directory.glob("*.faiss")] == ["index-00000.faiss"]
    told = json.loads((directory / "manifest.json").read_text())
    assert told["index_id"] == Manifest.load(directory).index_id and told["corpus"]["rows"] == 5


def test_index_id_depends_on_what_is_searched(build: Callable[..., Path], pages: list[dict[str, Any]]) -> None:
    first = Manifest.load(build("a")).index_id
    assert Manifest.load(build("b")).index_id == first
    assert Manifest.load(build("c", pages=pages[:3])).index_id != first


def test_a_new_corpus_drops_the_old_index(build: Callable[..., Path]) -> None:
    from rag_r1.retrieval.corpus_build import split_corpus

    directory = build()
    source = directory.with_name("index.jsonl")
    split_corpus(source, directory)
    Manifest.load(directory)  # the same source once more changes nothing
    source.write_text(source.read_text().splitlines(keepends=True)[0])
    split_corpus(source, directory)
    with pytest.raises(FileNotFoundError, match="manifest"):
        build_index(directory)


def test_a_nan_embedding_stops_the_build_and_is_named(build: Callable[..., Path], hash_encoder: Any) -> None:
    class Broken(hash_encoder):  # type: ignore[misc]
        def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
            vectors = self.encode_queries(texts)
            vectors[[("Hopper" in text) for text in texts]] = np.nan
            return vectors

    with pytest.raises(ValueError, match="passage 3 is not finite"):
        build_embeddings(build(), Broken())


@pytest.mark.parametrize("name", ["index-00001.faiss", "embeddings-00001.npy"])
@pytest.mark.parametrize("damage", ["torn", "changed", "missing"])
def test_a_damaged_shard_is_refused_by_name(build: Callable[..., Path], name: str, damage: str) -> None:
    directory = build()
    path = directory / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-4] if damage == "torn" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ManifestError, match=name):
        if name.startswith("index"):
            ShardedIndex.open(directory, Manifest.load(directory))
        else:
            build_index(directory, "sq8")

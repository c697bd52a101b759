"""Every kind of index: its recall, its size against the plan, mapped or in memory, in shards or merged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_r1.retrieval import LocalRetriever, ShardedIndex, build_embeddings, build_index, merge_index
from rag_r1.retrieval.encoder import EncoderSpec
from rag_r1.retrieval.index_report import exact_topk, recall_at
from rag_r1.retrieval.kinds import KINDS, factory_of, index_bytes
from rag_r1.retrieval.manifest import ManifestError
from rag_r1.retrieval.passages import PassageWriter

ROOT = Path(__file__).resolve().parents[3]
ROWS, DIM = 2_000, 32


class TableEncoder:
    """The vector of passage "n" is row n of a clustered table."""

    spec = EncoderSpec("table", "table", DIM, "none", False, "", "", 512)

    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        centres = numbers.standard_normal((40, DIM)).astype(np.float32)
        noise = numbers.standard_normal((ROWS, DIM)).astype(np.float32)
        self.table = centres[numbers.integers(0, 40, ROWS)] + 0.3 * noise

    def encode_passages(self, texts: list[str]) -> np.ndarray:
        return self.table[[int(text) for text in texts]]

    encode_queries = encode_passages


@pytest.fixture
def embedded(tmp_path: Path) -> Callable[..., Path]:
    def make(shards: int = 3, name: str = "index") -> Path:
        with PassageWriter(tmp_path / name) as writer:
            for row in range(ROWS):
                writer.write(str(row))
        build_embeddings(tmp_path / name, TableEncoder(), shards=shards)
        return tmp_path / name

    return make


@pytest.mark.parametrize("kind", [*KINDS, "IVF16,Flat", "PCA16,IVF16,SQ8"])
def test_the_report_is_true_and_the_size_is_as_planned(embedded: Callable[..., Path], kind: str) -> None:
    directory = embedded(shards=1 if kind == "ivf_pq" else 3)
    before = {path: path.read_bytes() for path in directory.glob("embeddings-*")}
    manifest = build_index(directory, kind, recall=0.9)
    index = ShardedIndex.open(directory, manifest)
    queries = TableEncoder().table[:200] + 0.1
    exact = exact_topk(directory, manifest, queries, 3)
    by_hand = np.argsort(-(queries @ TableEncoder().table.T), axis=1, kind="stable")[:, :3]
    assert [[row for row, _ in hits] for hits in exact] == by_hand.tolist()
    measured = recall_at(3, index.search(queries, 3), exact, np.full(len(queries), -1))
    assert measured > (0.3 if kind == "ivf_pq" else 0.5 if "PCA" in kind else 0.85)
    assert manifest.report["recall@3"] == pytest.approx(measured, abs=0.15)
    if kind in KINDS:
        planned = index_bytes(kind, ROWS, DIM, shards=len(manifest.shards))
        assert manifest.report["bytes"] == pytest.approx(planned, rel=0.12)
    assert {path: path.read_bytes() for path in before} == before
    assert build_index(directory, kind) == manifest, "and once more does nothing"


@pytest.mark.parametrize("kind", ["flat", "sq8", "ivf_sq8", "hnsw_sq8"])
def test_mapped_and_loaded_give_the_same(embedded: Callable[..., Path], kind: str) -> None:
    directory = embedded()
    manifest = build_index(directory, kind)
    queries = TableEncoder().table[::50]
    loaded, mapped = (ShardedIndex.open(directory, manifest, mmap=mmap).search(queries, 5) for mmap in (False, True))
    assert loaded == mapped


@pytest.mark.parametrize("kind", ["flat", "sq8", "ivf_sq8"])
def test_case_114_one_shard_three_shards_and_merged_are_the_same(embedded: Callable[..., Path], kind: str) -> None:
    three, one = embedded(3), embedded(1, "one")
    for directory in (three, one):
        build_index(directory, kind, recall=1.0)
    before = {path: path.read_bytes() for path in three.iterdir()}
    merged = three.with_name("merged")
    merge_index(three, merged)
    assert {path: path.read_bytes() for path in three.iterdir()} == before, "the shards stay as they were"
    queries = [str(row) for row in range(0, ROWS, 100)]
    found = [LocalRetriever.open(d, TableEncoder()).find(queries, 5) for d in (three, one, merged)]
    own = [hit.id for hits in found[0] for hit in hits[:1]]
    assert set(own) & {int(query) for query in queries}
    for other in found[2:] if kind == "ivf_sq8" else found[1:]:  # one shard has other clusters than three
        for ours, theirs in zip(found[0], other, strict=True):
            assert [hit.id for hit in ours] == [hit.id for hit in theirs]
            assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-4)


def test_case_114_what_cannot_be_merged_is_told(embedded: Callable[..., Path], tmp_path: Path) -> None:
    directory = embedded(2)
    build_index(directory, "hnsw_sq8")
    with pytest.raises(ManifestError, match=r"cannot merge .*index-00001\.faiss \(kind hnsw_sq8\).*--shards 1"):
        merge_index(directory, tmp_path / "merged")
    with pytest.raises(ManifestError, match="another folder"):
        merge_index(directory, directory)


def test_case_108_few_hits_in_the_probed_clusters_are_no_filler(embedded: Callable[..., Path]) -> None:
    directory = embedded()
    manifest = build_index(directory, "IVF64,Flat")
    index = ShardedIndex.open(directory, manifest)
    index.tune({"nprobe": 1})
    for hits in index.search(TableEncoder().table[:20], 1_500):
        rows = [row for row, _ in hits]
        assert 0 < len(rows) < 1_500 and len(set(rows)) == len(rows) and min(rows) >= 0


def test_case_116_half_precision_keeps_the_neighbours(embedded: Callable[..., Path]) -> None:
    directory = embedded()
    manifest = build_index(directory, "SQfp16")
    queries = np.random.default_rng(3).standard_normal((1_000, DIM)).astype(np.float32)
    found = ShardedIndex.open(directory, manifest).search(queries, 5)
    assert recall_at(5, found, exact_topk(directory, manifest, queries, 5), np.full(1_000, -1)) >= 0.99


def test_wrong_kinds_and_missing_gpus_are_told(embedded: Callable[..., Path]) -> None:
    directory = embedded()
    with pytest.raises(ValueError, match=r"kind 'ivf-sq8' is none of flat, sq8, ivf_sq8"):
        build_index(directory, "ivf-sq8")
    manifest = build_index(directory, "flat")
    with pytest.raises(ManifestError, match="faiss-gpu"):
        ShardedIndex.open(directory, manifest, gpu=True)


def test_case_115_the_plan_is_printed_before_anything_is_loaded() -> None:
    assert index_bytes("flat", 21_000_000, 768) == 64_512_000_000
    assert factory_of("ivf_sq8", 1024, 2_000_000) == "IVF4096,SQ8" and factory_of("ivf_pq", 100, 10) == "IVF1,PQ10"
    script = [sys.executable, str(ROOT / "scripts/build_corpus/plan_index.py"), "--rows", "21000000", "--dim", "768"]
    environment: dict[str, Any] = {"PYTHONPATH": str(ROOT), "PATH": ""}
    told = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout
    assert "64.5 GB" in told and all(kind in told for kind in KINDS) and "fits here" in told

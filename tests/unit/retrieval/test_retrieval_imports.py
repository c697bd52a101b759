"""Who only talks to a server loads no model code."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rag_r1.retrieval


def test_client_and_types_load_neither_torch_nor_faiss() -> None:
    code = (
        "import sys; from rag_r1.retrieval import Passage, RetrievalClient, RetrievalError, Retriever; "
        "print(sorted({'torch', 'faiss', 'sentence_transformers', 'fastapi', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves() -> None:
    for name in rag_r1.retrieval.__all__:
        assert getattr(rag_r1.retrieval, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rag_r1.retrieval.no_such_name

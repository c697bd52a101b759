"""Settings of `scripts/evaluate.py` (`configs/evaluate.yaml`), and the facts that identify a model and a data file.

The `rag_r1` section is the one of training (`configs/search_agent.yaml`), so an agent is evaluated under the protocol,
prompt, budget and retriever that it was trained with by giving the same overrides. Unknown keys are refused.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rag_r1.data import QuestionRow
from rag_r1.rollout import Budget

ENGINES = ("transformers",)
WEIGHTS = (".safetensors", ".bin", ".gguf", ".json", ".jinja", ".txt", ".model")
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What one evaluation needs; `from_config` builds it from the resolved Hydra configuration."""

    model: str
    """Folder (or hub name) of model and tokenizer."""
    data: str
    """Questions: parquet, JSON or JSON lines."""
    out_dir: str
    """Folder of results.jsonl, its settings, and summary.md."""
    protocol: str
    retriever_url: str | list[str]
    prompt_file: str | None = None
    topk: int = 3
    """Passages a query."""
    timeout_s: float = 60.0
    """Of one try of a request to the retriever."""
    max_retries: int = 3
    budget: Budget = Budget()  # noqa: RUF009 (frozen)
    engine: str = "transformers"
    device: str = "auto"
    """"auto" is the first GPU, else the CPU."""
    dtype: str = "auto"
    """"auto" is float32 on a CPU and bfloat16 elsewhere."""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    n: int = 1
    """Samples a question."""
    seed: int = 0
    concurrency: int = 64
    """Questions at once."""
    limit_per_kind: int | None = None
    """Most questions of a kind, chosen by a hash of their ids; None takes all."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine={self.engine!r} is unknown: use one of {', '.join(ENGINES)}")
        if self.limit_per_kind is not None and self.limit_per_kind < 1:
            raise ValueError(f"limit_per_kind={self.limit_per_kind} must be at least 1, or null for all")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EvaluationSettings:
        """ValueError for a key that does not exist, naming those that do."""
        values = dict(config)
        agent = dict(values.pop("rag_r1"))
        agent.pop("trajectories_path", None)  # an evaluation's results hold its trajectories
        retriever = dict(agent.pop("retriever"))
        retriever.pop("max_failed_share", None)  # of training's batches
        values["retriever_url"] = retriever.pop("url")
        budget = _known(Budget, agent.pop("budget"), "rag_r1.budget")
        return cls(**_known(cls, {**values, **retriever, **agent, "budget": Budget(**budget)}, "the evaluation"))


def _known(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = [field.name for field in fields(cls)]
    for name in values:
        if name not in known:
            raise ValueError(f"{name!r} is not a setting of {where}, which has: {', '.join(known)}")
    return dict(values)


def limit_rows(rows: Sequence[QuestionRow], per_kind: int | None) -> list[QuestionRow]:
    """At most `per_kind` rows of each kind, in the order of `rows`.

    Chosen by a hash of the id: the same whatever the seed, not the head of the file, and a larger limit keeps the
    questions of a smaller one.
    """
    if per_kind is None:
        return list(rows)
    kinds: defaultdict[tuple[str, str], list[QuestionRow]] = defaultdict(list)
    for row in rows:
        kinds[row.data_source, row.kind].append(row)
    chosen: set[str] = set()
    for group in kinds.values():
        group.sort(key=lambda row: hashlib.sha256(row.id.encode()).digest())
        chosen |= {row.id for row in group[:per_kind]}
    return [row for row in rows if row.id in chosen]


def model_facts(model: str) -> dict[str, Any]:
    """Name of a model and, for a folder, a fingerprint of its files: it changes when the model was trained further.

    The fingerprint reads names, sizes, and first and last MiB, so that a large model costs no more than a small one.
    """
    folder = Path(model)
    if not folder.is_dir():
        return {"name": model, "fingerprint": None}
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        for piece in _ends(file):
            digest.update(piece)
    return {"name": str(model), "fingerprint": digest.hexdigest()[:16]}


def _ends(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        yield opened.read(SAMPLE_BYTES)
        if file.stat().st_size > SAMPLE_BYTES:
            opened.seek(-SAMPLE_BYTES, os.SEEK_END)
            yield opened.read(SAMPLE_BYTES)


def data_facts(path: str) -> dict[str, Any]:
    """Path and hash of a file of questions."""
    return {"path": path, "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}

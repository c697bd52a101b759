"""The `rag_r1:` section of a training configuration: what this project adds to verl's schema.

One dataclass a group; Hydra's YAML (`configs/search_agent.yaml`) holds the same keys with a comment each, and an unknown key
is an error here before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rag_r1.rollout import Budget


@dataclass(frozen=True, kw_only=True)
class RetrieverSettings:
    url: str | list[str] = "http://127.0.0.1:8000/retrieve"
    """Address of the retrieval server's `/retrieve`, or a list of several that serve the same index."""
    topk: int = 3
    """Passages a query (paper: 3)."""
    timeout_s: float = 60.0
    """Seconds one request may take before it is tried again."""
    max_retries: int = 3
    """Further tries after a timeout, a transport error or 408/429/5xx; then the trajectory leaves the loss."""
    max_failed_share: float = 0.5
    """Share of a batch's trajectories that may fail at the retriever or the engine; beyond it the run stops with a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    protocol: str
    """`single_query` or `multi_query`."""
    prompt_file: str | None = None
    """A file with `{question}` in it that replaces the protocol's own prompt, e.g. the prompt of a published checkpoint."""
    trajectories_path: str | None = None
    """JSONL file that every finished trajectory is appended to; null keeps none."""
    retriever: RetrieverSettings = field(default_factory=RetrieverSettings)
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> Settings:
        """Build the settings from the `rag_r1` section; unknown keys raise `ValueError` with the names that exist."""
        values = dict(section)
        values["retriever"] = _build(RetrieverSettings, values.get("retriever") or {}, "rag_r1.retriever")
        values["budget"] = _build(Budget, values.get("budget") or {}, "rag_r1.budget")
        return _build(cls, values, "rag_r1")


def _build(cls: type[Any], values: Mapping[str, Any], where: str) -> Any:
    known = [f.name for f in fields(cls)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"{where}.{unknown[0]} is not a setting; {where} has: {', '.join(known)}")
    return cls(**values)

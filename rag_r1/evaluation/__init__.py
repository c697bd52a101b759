"""Evaluation: questions through the same generation manager as training, scored, summed up and reported.

`runner.evaluate` plays and scores, `summary` makes the table of one run, `report` compares runs before and after
training. `main` is the command line's side: it loads a model and a retriever, which nothing else here does.
"""

from __future__ import annotations

from rag_r1.evaluation.results import Record, read_records, read_settings
from rag_r1.evaluation.runner import evaluate
from rag_r1.evaluation.summary import SummaryRow, summarise

__all__ = ["Record", "SummaryRow", "evaluate", "read_records", "read_settings", "summarise"]

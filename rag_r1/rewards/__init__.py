"""Rewards and metrics of a finished trajectory: pure functions of (answer, golden answers).

The reward of the paper is `score(...)["em"]` (arXiv 2507.02962, section 3.3: an outcome reward, no format reward). The
answer comes from `Protocol.parse` of a policy turn, so neither the prompt's example nor a passage can be scored, and
nothing here depends on the name of the data set. Training and evaluation call the same functions.
"""

from __future__ import annotations

from rag_r1.rewards.exact_match import cover_match, exact_match, f1_score, normalise, score
from rag_r1.rewards.format import format_valid
from rag_r1.rewards.golds import golds_not_in
from rag_r1.rewards.numbers import number_aware_match

__all__ = [
    "cover_match",
    "exact_match",
    "f1_score",
    "format_valid",
    "golds_not_in",
    "normalise",
    "number_aware_match",
    "score",
]

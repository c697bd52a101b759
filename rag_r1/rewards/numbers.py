"""Exact match that knows numbers: "1.0" equals "1", "1,000" equals "1000", "3.14" does not equal "314".

The published normalisation deletes the decimal point with the rest of the punctuation. Here numbers are first written
in one way with marks that normalisation leaves alone, then the published rule applies. Not the reward, which stays
comparable with the paper. Left as text: "007", "1.2.3", "12,34" and digits inside words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rag_r1.rewards.exact_match import exact_match

# Private-use characters: not punctuation, and in no text.
_POINT, _MINUS = "\ue000", "\ue001"
_NUMBER = re.compile(
    r"(?<![\w.,])(?P<sign>(?<![^\s])-)?"
    r"(?:(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*|0)(?:\.(?P<decimals>[0-9]+))?|\.(?P<only_decimals>[0-9]+))"
    r"(?!\w|[.,][0-9])"
)


def number_aware_match(prediction: str | None, golden_answers: Sequence[str]) -> float:
    """1.0 if the prediction equals a golden answer with numbers compared by value, else 0.0."""
    if isinstance(golden_answers, str):
        raise TypeError(f"golden_answers={golden_answers!r} is a string, not a list: use rag_r1.data.golden_list")
    if prediction is None:
        return 0.0
    return exact_match(_write_numbers(prediction), [_write_numbers(gold) for gold in golden_answers])


def _write_numbers(text: str) -> str:
    return _NUMBER.sub(_write_number, text)


def _write_number(match: re.Match[str]) -> str:
    whole = (match["whole"] or "0").replace(",", "")
    decimals = (match["decimals"] or match["only_decimals"] or "").rstrip("0")
    number = f"{whole}{_POINT}{decimals}" if decimals else whole
    return f"{_MINUS}{number}" if match["sign"] and number != "0" else number

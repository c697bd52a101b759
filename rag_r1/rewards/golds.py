"""Data check: golden answers that no answer copied from the passages can match.

Golden answers built by detokenising carry stray blanks ("early- life"); normalised they differ from the passage's
"early-life", so exact match is out of reach whatever the policy does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rag_r1.rewards.exact_match import normalise


def golds_not_in(golden_answers: Sequence[str], passages: Iterable[str]) -> list[str]:
    """The golden answers whose normalised words stand in none of the normalised passages, in order.

    Yes/no and other answers that are not copied from a passage are flagged too: whether that matters is the caller's
    to say.
    """
    texts = [f" {normalise(passage)} " for passage in passages]
    return [gold for gold in golden_answers if not any(f" {normalise(gold)} " in text for text in texts)]

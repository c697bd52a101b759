"""Whether the token just sampled completes a stop string.

A stop string may span tokens, and the last token may go on after it (`"</search>\\n"`). Decoding the row after every
token would be slow, so a token is looked at only if its own text holds the last character of a stop string; only then
are the last few tokens decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_r1.rollout.tokenizer import Tokenizer

_SLACK_TOKENS = 16
"""Tokens without text (special, or the rest of a character) that may lie within a stop string."""


class StopChecker:
    """Remembers, for each token id, whether its text may end a stop string."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._may_end: dict[tuple[int, tuple[str, ...]], bool] = {}

    def completes(self, ids: Sequence[int], stop: tuple[str, ...]) -> bool:
        """True if the text of `ids` holds one of `stop`, given that it did not without its last token."""
        if not stop or not self._candidate(ids[-1], stop):
            return False
        window = max(len(string.encode()) for string in stop) + _SLACK_TOKENS
        text = self._tokenizer.decode(list(ids[-window:]), skip_special_tokens=True)
        return any(string in text for string in stop)

    def _candidate(self, token: int, stop: tuple[str, ...]) -> bool:
        key = (token, stop)
        known = self._may_end.get(key)
        if known is None:
            piece = self._tokenizer.decode([token], skip_special_tokens=True)
            # The text of one token is not reliable for blanks (some tokenizers strip them) and parts of characters.
            known = any(s[-1] in piece or s[-1].isspace() or not s[-1].isascii() for s in stop)
            self._may_end[key] = known
        return known

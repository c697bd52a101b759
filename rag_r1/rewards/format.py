"""Is a trajectory written as the protocol asks? A metric, not part of the reward (paper, section 3.3).

Independent of the parser on purpose: the parser is lenient (it executes what it can), this is strict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TAG = re.compile(r"</?(?:think|search|answer|information)>")
_WELL_FORMED = re.compile(r"(?:<think></think>)+<(search|answer)></\1>")


def format_valid(texts: Sequence[str]) -> bool:
    """True if every policy turn is closed thoughts and then exactly one action that is not empty, and no other tags.

    `texts` are the turns as the policy wrote them, one string each; no turns at all is not valid.
    """
    return bool(texts) and all(map(_turn_valid, texts))


def _turn_valid(text: str) -> bool:
    tags = list(_TAG.finditer(text))
    if not _WELL_FORMED.fullmatch("".join(tag.group() for tag in tags)):
        return False
    return bool(text[tags[-2].end() : tags[-1].start()].strip())

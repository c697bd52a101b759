"""The query list of a multi-query turn: `capital of France, "Paris, Texas population"` holds two queries.

The comma separates, as in the paper; commas between double quotes do not (31-34 % of the training questions hold a
comma, and the original cuts them there). A quote opens only at the start of a word and closes only at the end of one,
so the inch marks of `5" disk, 8" disk` stay what they are. A quote that is never closed is not a quote: the list is
split at its commas and the good queries are kept.
"""

from __future__ import annotations

import re

_ITEM = re.compile(r'(?:(?<![^\s,])"[^"]*"(?![^\s,])|[^,])+')


def split_queries(content: str) -> list[str]:
    """The queries of `content` in order: white space collapsed, outer quotes and blanks dropped, duplicates (case and
    white space apart) removed."""
    queries: dict[str, str] = {}
    for item in _ITEM.findall(content):
        query = _clean(item)
        if query:
            queries.setdefault(query.casefold(), query)
    return list(queries.values())


def collapse(text: str) -> str:
    """`text` with every run of white space as one blank, none at the ends."""
    return " ".join(text.split())


def _clean(item: str) -> str:
    query = collapse(item)
    if query.count('"') == 1 and query.startswith('"'):  # never closed
        return query[1:].strip()
    if query.count('"') == 2 and query.startswith('"') and query.endswith('"'):
        return query[1:-1].strip()
    return query

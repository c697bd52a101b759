"""Keys and values of finished generations, kept for the next turn of the same trajectory.

The prompt of turn k+1 is the ids of turn k followed by an observation (ids are only ever appended), so its beginning
has been computed already. Entries are found by their ids alone: nothing in the engine's interface knows trajectories.
The least recently added entries go when the budget of tokens is used up. An entry is taken out when it is used: the
sequence comes back, longer, at the end of its turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from torch import Tensor


class PrefixCache:
    """Maps id sequences to per-layer columns (see `SlotCache.export`). `max_tokens` 0 switches it off."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._entries: OrderedDict[int, tuple[list[int], list[Tensor]]] = OrderedDict()

    def put(self, ids: list[int], columns: list[Tensor]) -> None:
        """Keep the columns of `ids`; ids longer than the whole budget are not kept."""
        if len(ids) > self.max_tokens:
            return
        *_, key = _prefix_keys(ids)
        self._drop(key)
        self._entries[key] = (ids, columns)
        self.num_tokens += len(ids)
        while self.num_tokens > self.max_tokens:
            self._drop(next(iter(self._entries)))

    def take(self, ids: Sequence[int]) -> list[Tensor] | None:
        """Columns of the longest kept sequence that `ids` begins with, leaving at least one token to compute."""
        if not self._entries:
            return None
        found = None
        for length, key in enumerate(_prefix_keys(ids[:-1]), start=1):
            entry = self._entries.get(key)
            if entry is not None and len(entry[0]) == length and entry[0] == list(ids[:length]):
                found = key
        return None if found is None else self._drop(found)

    def clear(self) -> None:
        self._entries.clear()
        self.num_tokens = 0

    def _drop(self, key: int) -> list[Tensor] | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.num_tokens -= len(entry[0])
        return entry[1]


def _prefix_keys(ids: Sequence[int]) -> Iterator[int]:
    """A hash for each non-empty prefix of `ids`, in one pass."""
    key = 0
    for token in ids:
        key = hash((key, token))
        yield key

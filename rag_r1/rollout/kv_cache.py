"""Key-value cache of a running batch: one slot a sequence, each sequence starting at column 0.

Model: for every layer, keys and values lie in a `(slots, columns, heads, head_dim)` store. The running rows are slots
`0..n-1`, so attention reads a view and nothing is copied when sequences grow. A sequence joins by writing into the next
slot and leaves by having the last row moved into its slot; neither touches the other rows, and there is no left padding
to shift. (Beside it, concatenating a `DynamicCache` copies the whole batch on every step.)

Invariants:

* Column `p` of a slot holds position `p` of its sequence; the attention mask hides everything beyond.
* Hidden columns are finite: a hidden NaN would still poison the weighted sum (0 * NaN). Stores start as zeros, and
  `clear` is called on a slot that held a NaN.
* Pad tokens of a prefill write to the last column, which is never read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

COLUMN_STEP = 64


class _Plan:
    """Where the forward pass that is about to run reads and writes; shared by the layers."""

    start = 0
    """First slot."""
    rows = 0
    length = 0
    """Columns that are read."""
    index: Tensor
    """(rows * new_tokens,) int64, where to write: slot * columns + column."""
    slots = 0
    columns = 0


class _SlotLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._empty(key_states), self._empty(value_states)
        self.is_initialized = True

    def _empty(self, like: Tensor) -> Tensor:
        _, heads, _, head_dim = like.shape
        return like.new_zeros(self.plan.slots, self.plan.columns, heads, head_dim)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """(rows, heads, new_tokens, head_dim) in; (rows, heads, length, head_dim) views out."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, store: Tensor, states: Tensor) -> Tensor:
        plan = self.plan
        flat = states.transpose(1, 2).reshape(plan.index.shape[0], -1)
        store.view(plan.slots * plan.columns, -1).index_copy_(0, plan.index, flat)
        return store[plan.start : plan.start + plan.rows, : plan.length].transpose(1, 2)

    def grow(self, slots: int, columns: int) -> None:
        """Larger stores with the old content; the old write-only column is not carried over."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(slots, columns, *old.shape[2:])
            new[: old.shape[0], : old.shape[1] - 1] = old[:, :-1]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.plan.length, 0

    def get_seq_length(self) -> int:
        return self.plan.length

    def get_max_cache_shape(self) -> int:
        return -1


class SlotCache(Cache):
    """A `transformers` cache for models whose layers all use full attention."""

    def __init__(self, num_layers: int, max_slots: int) -> None:
        self._plan = _Plan()
        self._max_slots = max_slots
        super().__init__(layers=[_SlotLayer(self._plan) for _ in range(num_layers)])

    def prepare(self, start: int, columns: Tensor, length: int) -> None:
        """Announce the next forward pass: rows `start..start+rows-1` write to `columns` and read `length` columns.

        `columns` is (rows, new_tokens) int64 with -1 for pad tokens.
        """
        plan = self._plan
        rows = columns.shape[0]
        self._reserve(start + rows, length + 1)
        slot = torch.arange(start, start + rows, device=columns.device).unsqueeze(1) * plan.columns
        plan.start, plan.rows, plan.length = start, rows, length
        plan.index = (slot + torch.where(columns < 0, plan.columns - 1, columns)).flatten()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of slot `source` to slot `target`."""
        for store in self._stores():
            store[target, :length] = store[source, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot."""
        for store in self._stores():
            store[slot].zero_()

    def export(self, slot: int, length: int) -> list[Tensor]:
        """Copies of the first `length` columns of a slot: keys and values of layer 0, of layer 1, ..."""
        return [store[slot, :length].clone() for store in self._stores()]

    def restore(self, slot: int, columns: Sequence[Tensor]) -> None:
        """Write back what `export` returned."""
        length = columns[0].shape[0]
        self._reserve(slot + 1, length + 1)
        for store, values in zip(self._stores(), columns, strict=True):
            store[slot, :length] = values

    def release(self) -> None:
        """Give all memory back."""
        self._plan.slots = self._plan.columns = 0
        for layer in self.layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    def _stores(self) -> list[Tensor]:
        return [store for layer in self.layers for store in (layer.keys, layer.values)]

    def _reserve(self, slots: int, columns: int) -> None:
        plan = self._plan
        if slots <= plan.slots and columns <= plan.columns:
            return
        if slots > plan.slots:
            slots = min(max(slots, 2 * plan.slots), self._max_slots)
        if columns > plan.columns:
            columns = max(-(-columns // COLUMN_STEP) * COLUMN_STEP, plan.columns * 5 // 4)
        plan.slots, plan.columns = max(slots, plan.slots), max(columns, plan.columns)
        for layer in self.layers:
            if layer.is_initialized:
                layer.grow(plan.slots, plan.columns)

"""Continuous batching, without threads: requests join the running batch at any step and leave when they end.

`BatchDecoder.step` prefills the requests that join, samples one token for every row, and returns what has finished.
Every row's result equals what it would be alone (up to rounding): rows share the forward pass and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rag_r1.rollout.engine import Generation, SamplingParams
from rag_r1.rollout.kv_cache import SlotCache
from rag_r1.rollout.prefix_cache import PrefixCache
from rag_r1.rollout.sampling import BatchSampler
from rag_r1.rollout.stop_strings import StopChecker
from rag_r1.rollout.tokenizer import Tokenizer

MAX_PREFILL_TOKENS = 4096
"""Tokens of one prefill pass, padding included; bounds the memory of its activations."""


@dataclass(slots=True)
class Request:
    prompt_ids: list[int]
    sampling: SamplingParams
    future: Future[Generation] = field(default_factory=Future)


@dataclass(slots=True)
class _Row:
    request: Request
    uniforms: list[float]
    """One random number a token, drawn when the row joins."""
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finite: bool = True

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: all but the last sampled one."""
        return len(self.request.prompt_ids) + len(self.ids) - 1


class BatchDecoder:
    """A model, its key-value cache and the rows that are running. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        max_batch: int,
        max_cached_tokens: int,
        eos_ids: frozenset[int],
        seed: int,
    ) -> None:
        self.model = model
        self.max_batch = max_batch
        self.device: torch.device = model.device
        self.counters = {"prefill_tokens": 0, "reused_tokens": 0, "decode_tokens": 0, "steps": 0}
        self._eos_ids = eos_ids
        self._stop = StopChecker(tokenizer)
        self._cache = SlotCache(model.config.get_text_config().num_hidden_layers, max_batch)
        self._prefixes = PrefixCache(max_cached_tokens)
        self._generator = torch.Generator().manual_seed(seed)
        self._additive_mask = model.config._attn_implementation == "eager"
        self._rows: list[_Row] = []
        self._sampler: BatchSampler | None = None

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def requests(self) -> list[Request]:
        """The running requests."""
        return [row.request for row in self._rows]

    def reset(self) -> None:
        """Forget all rows and everything computed: after an error, or when the weights change."""
        self._rows, self._sampler = [], None
        self._prefixes.clear()
        self._cache.release()

    @torch.inference_mode()
    def step(self, joining: Sequence[Request]) -> list[tuple[Request, Generation]]:
        """Advance every running row by one token; `joining` rows get their first one. Returns the finished ones."""
        finished: list[tuple[Request, Generation]] = []
        if self._rows:
            self._decode()
            finished += self._retire()
        for group in _prefill_groups(joining):
            start = len(self._rows)
            self._prefill(group)
            finished += self._retire(start)
        self.counters["steps"] += 1
        return finished

    # -- forward passes ----------------------------------------------------------------------------------------------

    def _prefill(self, requests: Sequence[Request]) -> None:
        start = len(self._rows)
        known: list[int] = []
        for slot, request in enumerate(requests, start=start):
            columns = self._prefixes.take(request.prompt_ids)
            if columns is not None:
                self._cache.restore(slot, columns)
            known.append(0 if columns is None else columns[0].shape[0])
            self._rows.append(_Row(request, self._uniforms(request.sampling)))
        lengths = [len(request.prompt_ids) for request in requests]
        width = max(length - begin for length, begin in zip(lengths, known, strict=True))
        tokens, positions = [], []  # left-padded, so that the last column holds every row's last token
        for request, length, begin in zip(requests, lengths, known, strict=True):
            pad = width - (length - begin)
            tokens.append([0] * pad + request.prompt_ids[begin:])
            positions.append([-1] * pad + list(range(begin, length)))
        self.counters["prefill_tokens"] += sum(lengths) - sum(known)
        self.counters["reused_tokens"] += sum(known)
        self._sample(self._forward(start, tokens, positions), start)

    def _decode(self) -> None:
        tokens = [[row.ids[-1]] for row in self._rows]
        positions = [[row.cached] for row in self._rows]
        self.counters["decode_tokens"] += len(tokens)
        self._sample(self._forward(0, tokens, positions), 0)

    def _forward(self, start: int, tokens: list[list[int]], positions: list[list[int]]) -> Tensor:
        """Logits (R, V) after the last token of each row; position -1 marks padding."""
        ids = torch.tensor(tokens, device=self.device)  # (R, Q)
        columns = torch.tensor(positions, device=self.device)  # (R, Q)
        length = 1 + max(row[-1] for row in positions)
        self._cache.prepare(start, columns, length)
        # Padding looks at column 0, so that no row of the softmax is empty; its result is not used.
        columns = columns.clamp(min=0)
        mask = torch.arange(length, device=self.device) <= columns[:, None, :, None]  # (R, 1, Q, T)
        if self._additive_mask:
            smallest = torch.finfo(self.model.dtype).min
            mask = torch.zeros_like(mask, dtype=self.model.dtype).masked_fill_(~mask, smallest)
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=columns,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    # -- sampling ----------------------------------------------------------------------------------------------------

    def _uniforms(self, sampling: SamplingParams) -> list[float]:
        if sampling.temperature == 0.0:
            return []
        seeded = sampling.seed is not None
        generator = torch.Generator().manual_seed(sampling.seed) if seeded else self._generator  # type: ignore[arg-type]
        uniforms: list[float] = torch.rand(sampling.max_tokens, generator=generator, dtype=torch.float64).tolist()
        return uniforms

    def _sample(self, logits: Tensor, start: int) -> None:
        rows = self._rows[start:]
        if start or self._sampler is None:
            sampler = BatchSampler([row.request.sampling for row in rows], self.device)
            self._sampler = None if start else sampler
        else:
            sampler = self._sampler
        uniforms = [row.uniforms[len(row.ids)] if row.uniforms else 0.0 for row in rows]
        tokens, log_probs = sampler(logits, torch.tensor(uniforms, dtype=torch.float64, device=self.device))
        for row, token, log_prob in zip(rows, tokens.tolist(), log_probs.tolist(), strict=True):
            row.ids.append(token)
            row.log_probs.append(log_prob)
            row.finite = row.finite and math.isfinite(log_prob)

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _retire(self, start: int = 0) -> list[tuple[Request, Generation]]:
        """Take finished and cancelled rows out; the last row moves into each gap."""
        finished = []
        for slot in range(len(self._rows) - 1, start - 1, -1):
            row = self._rows[slot]
            reason = self._stop_reason(row)
            if reason is None:
                continue
            if reason != "aborted":
                finished.append((row.request, Generation(row.ids, row.log_probs, reason)))
            self._remove(slot, keep=row.finite and reason != "aborted")
        finished.reverse()
        return finished

    def _stop_reason(self, row: _Row) -> str | None:
        if row.request.future.cancelled():
            return "aborted"
        if row.ids[-1] in self._eos_ids:
            return "eos"
        if self._stop.completes(row.ids, row.request.sampling.stop):
            return "stop"
        return "length" if len(row.ids) >= row.request.sampling.max_tokens else None

    def _remove(self, slot: int, *, keep: bool) -> None:
        row = self._rows[slot]
        if keep and self._prefixes.max_tokens:
            ids = (row.request.prompt_ids + row.ids)[: row.cached]
            self._prefixes.put(ids, self._cache.export(slot, row.cached))
        if not row.finite:
            self._cache.clear(slot)
        last = self._rows.pop()
        if last is not row:
            self._cache.move(len(self._rows), slot, last.cached)
            if not last.finite:
                self._cache.clear(len(self._rows))
            self._rows[slot] = last
        self._sampler = None


def _prefill_groups(requests: Sequence[Request]) -> list[list[Request]]:
    """Requests of like length, as many to a group as `MAX_PREFILL_TOKENS` padded tokens allow."""
    groups: list[list[Request]] = []
    width = 0
    for request in sorted(requests, key=lambda request: len(request.prompt_ids)):
        wider = max(width, len(request.prompt_ids))
        if not groups or wider * (len(groups[-1]) + 1) > MAX_PREFILL_TOKENS:
            groups.append([])
            wider = len(request.prompt_ids)
        groups[-1].append(request)
        width = wider
    return groups

"""Vectorised sampling: one call samples a token for every row of a batch, each row with its own settings.

Each row brings one uniform number a token, and a token is drawn by inverting the cumulative distribution. A row's
numbers come from its own seed (or from the engine's generator), so a seeded request gives the same sample whatever it
is batched with.

The log-probability returned is that of the full distribution at the row's temperature, before `top_p` and `top_k`: what
a trainer that divides its logits by the temperature recomputes. Greedy rows use temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rag_r1.rollout.engine import SamplingParams


class BatchSampler:
    """Settings of the rows of a batch as tensors; built anew when rows join or leave."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device).unsqueeze(1)  # (B, 1)

        self._greedy = torch.tensor([p.temperature == 0.0 for p in params], device=device)
        self._any_greedy = any(p.temperature == 0.0 for p in params)
        self._all_greedy = all(p.temperature == 0.0 for p in params)
        self._scaled = any(p.temperature not in (0.0, 1.0) for p in params)
        self._temperature = column([p.temperature or 1.0 for p in params])
        self._filtered = any(p.top_p < 1.0 or p.top_k > 0 for p in params)
        self._top_p = column([p.top_p if p.top_p < 1.0 else torch.inf for p in params])
        self._top_k = column([p.top_k if p.top_k > 0 else torch.inf for p in params])

    def __call__(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Sample from `logits` (B, V) with `uniforms` (B,) in [0, 1).

        Returns token ids (B,) int64 and their log-probs (B,) fp32.
        """
        logits = logits.float()
        if self._scaled:
            logits = logits / self._temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        if self._all_greedy:
            tokens = log_probs.argmax(dim=-1)
        else:
            tokens = self._draw(log_probs.exp(), uniforms)
            if self._any_greedy:
                tokens = torch.where(self._greedy, log_probs.argmax(dim=-1), tokens)
        return tokens, log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)

    def _draw(self, probs: Tensor, uniforms: Tensor) -> Tensor:
        if self._filtered:
            probs = self._filter(probs)
        cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
        # The first token whose cumulative probability exceeds the point: never one of probability 0.
        point = uniforms.to(torch.float64).unsqueeze(1) * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, point, right=True).squeeze(1)
        return tokens.clamp_(max=probs.shape[-1] - 1)  # only a row of NaN gets past the end

    def _filter(self, probs: Tensor) -> Tensor:
        """Zero what top-k and top-p leave out; the most probable token always stays. Not normalised again."""
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        rank = torch.arange(probs.shape[-1], device=probs.device)
        keep = (rank < self._top_k) & ((before < self._top_p) | (rank == 0))
        return torch.zeros_like(probs).scatter_(1, order, torch.where(keep, ordered, 0.0))

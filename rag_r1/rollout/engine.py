"""What the generation manager asks of an inference engine: token ids in, token ids and log-probs out.

Invariants of every engine:

* The ids returned are the ids sampled, in order, unchanged. Nothing is cut, stripped, decoded or encoded again.
* The stop string and the eos token are part of `token_ids`. The last token may carry characters after the stop string
  (`"</search>\\n"` as one token); it is kept whole.
* `log_probs[i]` is the log-probability of `token_ids[i]` under the full distribution at the sampling temperature
  (before `top_p` and `top_k`), which is what a trainer recomputes; greedy sampling uses temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one generation is sampled. The names and defaults are vLLM's."""

    max_tokens: int
    """Most new tokens of this generation, at least 1."""
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    """Nucleus, in (0, 1]. 1 keeps the full distribution, which the ratio of PPO assumes."""
    top_k: int = -1
    """Keep the k most probable tokens; -1 keeps all."""
    stop: tuple[str, ...] = ()
    """Generation ends with the token that completes one of these strings."""
    seed: int | None = None
    """Makes this request's sample repeatable, whatever it is batched with; None draws from the engine's generator."""

    def __post_init__(self) -> None:
        checks = {
            "max_tokens": self.max_tokens >= 1,
            "temperature": 0.0 <= self.temperature < float("inf"),
            "top_p": 0.0 < self.top_p <= 1.0,
            "top_k": self.top_k == -1 or self.top_k >= 1,
            "stop": all(self.stop),
        }
        for name, valid in checks.items():
            if not valid:
                raise ValueError(f"SamplingParams.{name}={getattr(self, name)!r} is out of range; see its docstring")


@dataclass(frozen=True, slots=True)
class Generation:
    """Result of one generation."""

    token_ids: list[int]
    log_probs: list[float]
    """Natural logarithm, one a token."""
    stop_reason: str
    """"stop" (a stop string was completed), "eos", "length" (max_tokens reached) or "aborted" (by the engine)."""


class Engine(Protocol):
    """An inference engine. Many `generate` calls run at once; batching them is the engine's business."""

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """Continue `prompt_ids`. Any exception marks the trajectory `engine_failed`."""
        ...

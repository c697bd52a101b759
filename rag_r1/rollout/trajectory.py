"""A trajectory: the token ids of one question, appended to and never rewritten.

Invariants (held here, whatever the caller does):

* ids, mask and log-probs have one length and only grow, so the ids of turn k are a prefix of the ids of turn k+1;
* `response_mask` is 1 exactly for the tokens that the engine sampled, and is written when tokens are appended. It is
  never found again in text nor derived from pad ids. A sampled token whose log-probability is not finite is masked and
  counted, because no ratio can be formed with it;
* a finished trajectory ends on a policy token (or is empty): an observation that nothing followed is dropped, so the
  reward sits on a trained position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.retrieval.types import Passage

END_REASONS = frozenset(
    {
        "answer",
        "turn_limit",
        "invalid_limit",
        "response_limit",
        "prompt_too_long",
        "retrieval_failed",
        "engine_failed",
    }
)
NOT_IN_LOSS = frozenset({"retrieval_failed", "engine_failed", "prompt_too_long"})
"""End reasons that say nothing about the policy: such trajectories are recorded and counted, never trained on."""


@dataclass(slots=True)
class Turn:
    """One generation of the policy and what the environment made of it."""

    text: str
    """Decoded for reading and parsing only."""
    action: str
    """"search", "answer" or "invalid"."""
    num_tokens: int
    """Tokens sampled in this turn."""
    stop_reason: str
    reason: str = ""
    """Why the action is invalid (snake_case), else empty."""
    answer: str | None = None
    queries: tuple[str, ...] = ()
    dropped: int = 0
    """Distinct queries over the protocol's limit, not sent."""
    passages: list[list[Passage]] = field(default_factory=list)
    """`passages[i]` belongs to `queries[i]`."""
    executed: bool = False
    """The search was sent and answered. False in the final turn and after a retrieval failure."""
    observation_tokens: int = 0
    generate_s: float = 0.0
    retrieve_s: float = 0.0

    def to_record(self, *, with_contents: bool = False) -> dict[str, Any]:
        """JSON-able; passages as `{id, score}`, with their contents on request."""
        return {
            "text": self.text,
            "action": self.action,
            "reason": self.reason,
            "queries": list(self.queries),
            "dropped": self.dropped,
            "executed": self.executed,
            "passages": [
                [
                    {"id": p.id, "score": p.score, **({"contents": p.contents} if with_contents else {})}
                    for p in per_query
                ]
                for per_query in self.passages
            ],
            "tokens": self.num_tokens,
            "observation_tokens": self.observation_tokens,
            "stop_reason": self.stop_reason,
            "generate_s": round(self.generate_s, 6),
            "retrieve_s": round(self.retrieve_s, 6),
        }


class Trajectory:
    """Ids, mask, log-probs and turns of one question. Sequences are handed out as copies."""

    def __init__(self, id: str, question: str, prompt_ids: Sequence[int]) -> None:
        self.id = id
        self.question = question
        self.turns: list[Turn] = []
        self.end_reason: str | None = None
        self.error: str | None = None
        """Message of the retrieval or engine failure that ended the trajectory."""
        self.num_masked = 0
        """Sampled tokens masked because their log-probability was not finite."""
        self._prompt_ids = tuple(prompt_ids)
        self._response_ids: list[int] = []
        self._mask: list[int] = []
        self._log_probs: list[float] = []
        self._policy_end = 0

    # -- growing -----------------------------------------------------------------------------------------------------

    def append_policy(self, ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Append sampled tokens (mask 1). ValueError where ids and log-probs differ in length."""
        self._check_open()
        if len(ids) != len(log_probs):
            raise ValueError(f"trajectory {self.id!r}: {len(ids)} token ids but {len(log_probs)} log-probs")
        finite = [math.isfinite(value) for value in log_probs]
        self.num_masked += finite.count(False)
        self._response_ids.extend(ids)
        self._mask.extend(map(int, finite))
        self._log_probs.extend(value if ok else 0.0 for value, ok in zip(log_probs, finite, strict=True))
        if ids:
            self._policy_end = len(self._response_ids)

    def append_observation(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample: documents, hints, anything forced (mask 0, log-prob 0.0)."""
        self._check_open()
        self._response_ids.extend(ids)
        self._mask.extend([0] * len(ids))
        self._log_probs.extend([0.0] * len(ids))

    def finish(self, reason: str, error: str | None = None) -> None:
        """Close the trajectory with one of `END_REASONS`; drops an observation that nothing followed."""
        self._check_open()
        if reason not in END_REASONS:
            raise ValueError(f"trajectory {self.id!r}: unknown end reason {reason!r}, use one of {sorted(END_REASONS)}")
        if self._policy_end < len(self._response_ids):
            for values in (self._response_ids, self._mask, self._log_probs):
                del values[self._policy_end :]
            if self.turns:
                self.turns[-1].observation_tokens = 0
        self.end_reason, self.error = reason, error

    def _check_open(self) -> None:
        if self.end_reason is not None:
            raise RuntimeError(f"trajectory {self.id!r} is finished ({self.end_reason}); nothing can be appended")

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def prompt_ids(self) -> list[int]:
        return list(self._prompt_ids)

    @property
    def response_ids(self) -> list[int]:
        return list(self._response_ids)

    @property
    def response_mask(self) -> list[int]:
        """1 on sampled tokens, 0 on observations; as long as `response_ids`."""
        return list(self._mask)

    @property
    def log_probs(self) -> list[float]:
        """Of sampled tokens, at the sampling temperature; 0.0 where the mask is 0."""
        return list(self._log_probs)

    @property
    def ids(self) -> list[int]:
        """Prompt and response: what the engine is asked to continue."""
        return [*self._prompt_ids, *self._response_ids]

    @property
    def num_response_tokens(self) -> int:
        return len(self._response_ids)

    @property
    def answer(self) -> str | None:
        """Text of the answer action, or None. Prompt, observations and thoughts are never looked at."""
        return self.turns[-1].answer if self.turns and self.end_reason == "answer" else None

    @property
    def in_loss(self) -> bool:
        """Whether the trajectory may be trained on: the reward needs a trained last token to sit on."""
        return self.end_reason not in NOT_IN_LOSS and self._mask[-1:] == [1]

    @property
    def num_turns(self) -> int:
        """Generations, the final one included."""
        return len(self.turns)

    @property
    def num_searches(self) -> int:
        """Turns whose search was executed."""
        return sum(turn.executed for turn in self.turns)

    @property
    def num_queries(self) -> int:
        """Queries of executed searches."""
        return sum(len(turn.queries) for turn in self.turns if turn.executed)

    @property
    def num_invalid(self) -> int:
        return sum(turn.action == "invalid" for turn in self.turns)

    @property
    def num_policy_tokens(self) -> int:
        """Tokens with mask 1."""
        return sum(self._mask)

    @property
    def num_observation_tokens(self) -> int:
        return len(self._mask) - sum(self._mask) - self.num_masked

    def counts(self) -> dict[str, int]:
        """The counters that are logged for every trajectory."""
        return {
            "num_turns": self.num_turns,
            "num_searches": self.num_searches,
            "num_queries": self.num_queries,
            "num_dropped": sum(turn.dropped for turn in self.turns),
            "num_invalid": self.num_invalid,
            "num_masked": self.num_masked,
            "prompt_tokens": len(self._prompt_ids),
            "policy_tokens": self.num_policy_tokens,
            "observation_tokens": self.num_observation_tokens,
        }

    def to_record(self, *, with_contents: bool = False) -> dict[str, Any]:
        """JSON-able record for logs: question, turns, answer, end reason and counts."""
        return {
            "id": self.id,
            "question": self.question,
            "turns": [turn.to_record(with_contents=with_contents) for turn in self.turns],
            "answer": self.answer,
            "end_reason": self.end_reason,
            "error": self.error,
            **self.counts(),
        }

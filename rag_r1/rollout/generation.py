"""The generation manager: one coroutine plays one question against the engine and the retriever.

    prompt -> [ generate -> parse -> search -> observation ] x max_turns -> one final generation

Questions do not wait for each other: each is a coroutine of its own, and batching is the business of the engine and of
the retrieval client. The original (behaviour of arXiv 2507.02962's code) moves a whole batch turn by turn.

Invariants:

* Token in, token out: the engine continues exactly the ids of the trajectory so far. Sampled ids are never encoded
  again; the text of a turn exists for parsing only. An observation is encoded once and appended as raw text, never as
  a chat message.
* Only the text of the current policy turn is parsed: never the prompt, never an observation.
* Generation stops at the tag in the sampler (the protocol's stop strings), not by cutting text.
* `max_response_tokens` covers policy and observations and is never exceeded. What does not fit is not appended.
* A failed retrieval or engine is an end reason of the trajectory, never an empty observation and never a crash of the
  other questions.

As published: after `max_turns` environment turns (searches and invalid actions) there is one final generation whose
search is not executed. Departures: invalid actions are bounded, the prompt is never cut, each query's documents are cut
by tokens with a visible mark.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rag_r1.protocols.base import Action, Answer, Invalid, Protocol, Search
from rag_r1.retrieval.types import Passage, RetrievalError, Retriever
from rag_r1.rollout.engine import Engine, Generation, SamplingParams
from rag_r1.rollout.tokenizer import Tokenizer, encode_prompt
from rag_r1.rollout.trajectory import Trajectory, Turn

logger = logging.getLogger(__name__)

CUT_MARK = " …"
MIN_TURN_TOKENS = 8
"""An observation is appended only if it leaves room for a turn of this many tokens: less cannot hold an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one trajectory, all in tokens of the policy's tokenizer or in turns."""

    max_turns: int = 5
    """Environment turns: executed searches and invalid actions. One final generation follows."""
    max_prompt_tokens: int = 2048
    """A longer prompt ends the trajectory before the engine sees it."""
    max_turn_tokens: int = 500
    """Tokens sampled in one turn."""
    max_observation_tokens: int = 1000
    """Documents of ONE query, cut mark included."""
    max_response_tokens: int = 8192
    """Policy and observation tokens together."""
    max_invalid_turns: int = 3
    """The trajectory ends with the invalid action that reaches this number."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < (0 if field.name == "max_turns" else 1):
                raise ValueError(f"Budget.{field.name}={value} is too small")


class GenerationManager:
    """Plays questions: `run` is called once a question, as many at a time as wanted."""

    def __init__(
        self,
        engine: Engine,
        retriever: Retriever,
        tokenizer: Tokenizer,
        protocol: Protocol,
        budget: Budget | None = None,
        topk: int = 3,
    ) -> None:
        if topk < 1:
            raise ValueError(f"topk={topk}: at least one passage a query is needed")
        self.engine = engine
        self.retriever = retriever
        self.tokenizer = tokenizer
        self.protocol = protocol
        self.budget = budget or Budget()
        self.topk = topk
        self._mark_ids = self._encode(CUT_MARK)

    async def run(self, question: str, sampling: SamplingParams, *, trajectory_id: str = "") -> Trajectory:
        """Play `question` to its end and return the finished trajectory.

        `sampling` applies to each turn: its `max_tokens` is a further upper bound of a turn beside the budget's, its
        `stop` is joined with the protocol's, and its `seed` (where given) is varied by turn.
        """
        trajectory = Trajectory(
            trajectory_id, question, encode_prompt(self.tokenizer, self.protocol.messages(question))
        )
        if len(trajectory.prompt_ids) > self.budget.max_prompt_tokens:
            trajectory.finish("prompt_too_long")
            return trajectory
        for turn_index in range(self.budget.max_turns + 1):
            room = self._room(trajectory)
            if room < 1:
                trajectory.finish("response_limit")
                break
            turn_sampling = self._turn_sampling(sampling, turn_index, room)
            if await self._play_turn(trajectory, turn_sampling, final=turn_index == self.budget.max_turns):
                break
        return trajectory

    # -- one turn ----------------------------------------------------------------------------------------------------

    async def _play_turn(self, trajectory: Trajectory, sampling: SamplingParams, *, final: bool) -> bool:
        """One generation and its consequences. True when the trajectory is finished."""
        started = time.perf_counter()
        try:
            generation = await self.engine.generate(trajectory.ids, sampling)
            _check_generation(generation, sampling)
        except Exception as error:
            logger.warning("trajectory %r: the engine failed: %r", trajectory.id, error)
            trajectory.finish("engine_failed", repr(error))
            return True
        generate_s = time.perf_counter() - started

        trajectory.append_policy(generation.token_ids, generation.log_probs)
        text = self.tokenizer.decode(generation.token_ids, skip_special_tokens=True)
        action = self._parse(text, generation, sampling)
        turn = _turn(text, action, generation, generate_s)
        trajectory.turns.append(turn)

        if isinstance(action, Answer):
            trajectory.finish("answer")
        elif final:
            trajectory.finish("turn_limit")
        elif isinstance(action, Search):
            await self._search(trajectory, turn, action)
        elif trajectory.num_invalid >= self.budget.max_invalid_turns:
            trajectory.finish("invalid_limit")
        else:
            self._observe(trajectory, turn, self.protocol.hint(action))
        return trajectory.end_reason is not None

    def _parse(self, text: str, generation: Generation, sampling: SamplingParams) -> Action:
        """A turn that was cut by its length is never executed: half a query is not what the policy asked."""
        if generation.stop_reason == "length" and not any(stop in text for stop in sampling.stop):
            return Invalid("cut_by_length")
        return self.protocol.parse(text)

    async def _search(self, trajectory: Trajectory, turn: Turn, search: Search) -> None:
        started = time.perf_counter()
        try:
            passages = await self.retriever.search(list(search.queries), self.topk)
            if len(passages) != len(search.queries):
                raise RetrievalError(f"{len(search.queries)} queries were sent, {len(passages)} results came back")
        except RetrievalError as error:
            turn.retrieve_s = time.perf_counter() - started
            logger.warning("trajectory %r: retrieval failed: %s", trajectory.id, error)
            trajectory.finish("retrieval_failed", str(error))
            return
        turn.retrieve_s = time.perf_counter() - started
        turn.passages, turn.executed = passages, True
        documents = [self._documents(per_query) for per_query in passages]
        self._observe(trajectory, turn, self.protocol.observation(search, documents))

    def _observe(self, trajectory: Trajectory, turn: Turn, text: str) -> None:
        """Append `text` with mask 0, or end the trajectory where it leaves no room to go on."""
        ids = self._encode(text)
        if self._room(trajectory) - len(ids) < MIN_TURN_TOKENS:
            trajectory.finish("response_limit")
            return
        trajectory.append_observation(ids)
        turn.observation_tokens = len(ids)

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _documents(self, passages: Sequence[Passage]) -> str:
        """One query's documents, at most `max_observation_tokens` tokens with the cut mark."""
        text = self.protocol.documents([passage.contents for passage in passages])
        limit = self.budget.max_observation_tokens
        ids = self._encode(text)
        if len(ids) <= limit:
            return text
        keep = max(limit - len(self._mark_ids), 0)
        while True:
            # A cut inside a character decodes to U+FFFD; joining may also tokenise longer than the parts.
            cut = self.tokenizer.decode(ids[:keep], skip_special_tokens=False).rstrip("\ufffd") + CUT_MARK
            if keep == 0 or len(self._encode(cut)) <= limit:
                return cut
            keep -= 1

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _room(self, trajectory: Trajectory) -> int:
        return self.budget.max_response_tokens - trajectory.num_response_tokens

    def _turn_sampling(self, sampling: SamplingParams, turn_index: int, room: int) -> SamplingParams:
        return dataclasses.replace(
            sampling,
            max_tokens=min(sampling.max_tokens, self.budget.max_turn_tokens, room),
            stop=tuple(dict.fromkeys((*self.protocol.stop, *sampling.stop))),
            # The same seed in every turn would repeat the same random numbers.
            seed=None if sampling.seed is None else (sampling.seed * 1_000_003 + turn_index) % 2**63,
        )


def _check_generation(generation: Generation, sampling: SamplingParams) -> None:
    """RuntimeError for a result that breaks the engine's contract or has nothing to go on with."""
    if generation.stop_reason == "aborted":
        raise RuntimeError(f"the engine aborted the request after {len(generation.token_ids)} tokens")
    if not 1 <= len(generation.token_ids) <= sampling.max_tokens:
        raise RuntimeError(f"the engine returned {len(generation.token_ids)} tokens of 1 to {sampling.max_tokens}")
    if len(generation.token_ids) != len(generation.log_probs):
        raise RuntimeError(f"{len(generation.token_ids)} token ids but {len(generation.log_probs)} log-probs")


def _turn(text: str, action: Action, generation: Generation, generate_s: float) -> Turn:
    turn = Turn(text, "invalid", len(generation.token_ids), generation.stop_reason, generate_s=generate_s)
    if isinstance(action, Answer):
        turn.action, turn.answer = "answer", action.text
    elif isinstance(action, Search):
        turn.action, turn.queries, turn.dropped = "search", action.queries, action.dropped
    else:
        turn.reason = action.reason
    return turn

"""A protocol: what a policy writes and what it reads back, as pure text.

    messages(question) -> chat messages              the prompt of turn 0
    parse(text of one policy turn) -> Action         Search, Answer or Invalid
    documents(passages) -> text of one query's passages
    observation(search, documents) -> text           what the policy reads after a search
    hint(invalid) -> text                            what it reads after an action that was not executed

Invariants:

* Pure: no tokenizer, no I/O, no state. The same text gives the same action in training, evaluation and SFT data.
* `parse` sees the text of ONE policy turn, never the prompt and never an observation.
* Model text is data: nothing evaluates it.
* Retrieved text cannot write a tag of the protocol (see `tags.neutralise`).

Limits in tokens are the business of the rollout; limits in queries and characters are kept here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

INVALID_REASONS = (
    "no_action",  # no action tag at all, or a tag that is none of the protocol's
    "unclosed_think",  # a thought without an end, and no action tag in it
    "unclosed_search",  # <search> without its </search>
    "unclosed_answer",  # <answer> without its </answer>
    "tag_inside_think",  # the only action tags stand inside a thought
    "information_written",  # the only action tags stand inside an <information> that the policy wrote itself
    "empty_query",
    "too_long_query",
    "empty_answer",
    "cut_by_length",  # the turn reached its token limit; told by the rollout, which never executes half a turn
)


@dataclass(frozen=True, slots=True)
class Search:
    """Queries to send, in order, each non-empty; `dropped` counts the distinct queries that a limit kept back."""

    queries: tuple[str, ...]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The final answer: stripped, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """A turn without an action that can be executed; `reason` is one of `INVALID_REASONS`."""

    reason: str

    def __post_init__(self) -> None:
        if self.reason not in INVALID_REASONS:
            raise ValueError(
                f"unknown reason {self.reason!r} of an invalid action; known: {', '.join(INVALID_REASONS)}"
            )


Action = Search | Answer | Invalid


@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """Text rules of one search agent. Subclasses are frozen dataclasses; see the module for the invariants."""

    name: str
    prompt_template: str
    """Text of the one user message. Holds `{question}` exactly once, and `{max_queries}` where it wants to name it;
    other braces are plain text."""
    max_queries: int
    """Queries of one turn that are sent."""
    stop: tuple[str, ...]
    """Stop strings for the sampler; the stop string stays in the output."""

    def __post_init__(self) -> None:
        found = self.prompt_template.count("{question}")
        if found != 1:
            raise ValueError(
                f"the prompt of protocol {self.name!r} holds {{question}} {found} times: put it in exactly once"
            )
        if self.max_queries < 1:
            raise ValueError(f"protocol {self.name!r}: max_queries={self.max_queries}, at least 1 is needed")

    def messages(self, question: str) -> list[dict[str, str]]:
        """The prompt as chat messages: one user message, as published. The question gets a "?" if it ends without."""
        question = question.strip()
        if not question:
            raise ValueError("the question is empty: check the data with rag_r1.data.check_parquet")
        if not question.endswith(("?", "？")):
            question += "?"
        # The question comes last: braces inside it are its own.
        content = self.prompt_template.replace("{max_queries}", str(self.max_queries)).replace("{question}", question)
        return [{"role": "user", "content": content}]

    @abstractmethod
    def parse(self, text: str) -> Action:
        """The action of one policy turn. Any text is legal; never raises."""

    @abstractmethod
    def documents(self, passages: Sequence[str]) -> str:
        """The passages of one query as one text, in order, their tags neutralised."""

    @abstractmethod
    def observation(self, search: Search, documents: Sequence[str]) -> str:
        """What the policy reads after `search`; `documents[i]` (from `documents()`) belongs to `search.queries[i]`.

        Raises:
            ValueError: not one document text a query.
        """

    @abstractmethod
    def hint(self, invalid: Invalid) -> str:
        """A short corrective observation: what was wrong, and what may be written."""

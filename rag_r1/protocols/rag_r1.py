"""RAG-R1 (arXiv 2507.02962, section 3): think, search with one or with up to three queries at once, answer.

    <think> ... </think> <search> q1, "q2, with comma" </search>
    <information> documents </information>                          (mask 0: not the policy's)
    <think> ... </think> <answer> short answer </answer>

The two modes share everything but what stands between `<search>` and `</search>`, and the body of an observation:
plain documents in single-query mode, a JSON object of queries and documents in multi-query mode (both as published).

Departures from the original: thoughts are never executed, at most `max_queries` distinct queries are sent and the
observation says when some were not, JSON keeps Unicode readable, tags in retrieved text are neutralised.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from rag_r1.protocols.base import Action, Answer, Invalid, Protocol, Search
from rag_r1.protocols.queries import collapse, split_queries
from rag_r1.protocols.tags import first_block, neutralise

STOP = ("</search>", "</answer>")
MAX_QUERY_CHARS = 1000
"""A longer query is not sent: it is a paragraph, not a query, and the encoder would cut it anyway."""

_WHY = {
    "no_action": "there was no action",
    "unclosed_think": "<think> was not closed",
    "unclosed_search": "<search> was not closed",
    "unclosed_answer": "<answer> was not closed",
    "tag_inside_think": "actions inside <think> do not count",
    "information_written": "only the search engine writes <information>",
    "empty_query": "the query was empty",
    "too_long_query": f"a query may have at most {MAX_QUERY_CHARS} characters",
    "empty_answer": "the answer was empty",
    "cut_by_length": "the turn was too long",
}


@dataclass(frozen=True, kw_only=True)
class RagR1Protocol(Protocol):
    """What both modes share."""

    stop: tuple[str, ...] = STOP

    def parse(self, text: str) -> Action:
        block = first_block(text)
        if isinstance(block, str):
            return Invalid(block)
        if block.tag == "search":
            return self._search(self._queries(block.content))
        answer = block.content.strip()
        return Answer(answer) if answer else Invalid("empty_answer")

    def documents(self, passages: Sequence[str]) -> str:
        return "\n".join(f"Doc {i}: {neutralise(passage).strip()}" for i, passage in enumerate(passages, start=1))

    def observation(self, search: Search, documents: Sequence[str]) -> str:
        if len(documents) != len(search.queries):
            raise ValueError(
                f"{len(search.queries)} queries, but {len(documents)} document texts: one a query is needed"
            )
        return f"\n<information>\n{self._body(search, documents)}\n</information>\n"

    def hint(self, invalid: Invalid) -> str:
        return (
            f"\nNot executed: {_WHY[invalid.reason]}. "
            f"To look something up: <search> {self._query_example} </search>. To finish: <answer> answer </answer>.\n"
        )

    # -- what the modes differ in ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _query_example(self) -> str:
        """What may stand between the search tags, for hints."""

    @abstractmethod
    def _queries(self, content: str) -> list[str]:
        """Distinct, non-empty queries of a search."""

    @abstractmethod
    def _body(self, search: Search, documents: Sequence[str]) -> str:
        """What stands between the information tags."""

    def _search(self, queries: Sequence[str]) -> Search | Invalid:
        """One bad query does not cost the turn its good ones."""
        if not queries:
            return Invalid("empty_query")
        sendable = [query for query in queries if len(query) <= MAX_QUERY_CHARS]
        if not sendable:
            return Invalid("too_long_query")
        sent = tuple(sendable[: self.max_queries])
        return Search(sent, dropped=len(queries) - len(sent))


@dataclass(frozen=True, kw_only=True)
class SingleQuery(RagR1Protocol):
    """One search a turn: everything between the tags is the query."""

    name: str = "single_query"
    max_queries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_queries != 1:
            raise ValueError(f"protocol 'single_query' sends one query a turn, not max_queries={self.max_queries}")

    @property
    def _query_example(self) -> str:
        return "query"

    def _queries(self, content: str) -> list[str]:
        query = collapse(content)
        return [query] if query else []

    def _body(self, search: Search, documents: Sequence[str]) -> str:
        return "\n".join(documents)


@dataclass(frozen=True, kw_only=True)
class MultiQuery(RagR1Protocol):
    """Up to `max_queries` searches a turn, separated by commas (see `queries`)."""

    name: str = "multi_query"
    max_queries: int = 3

    @property
    def _query_example(self) -> str:
        return "query, query"

    def _queries(self, content: str) -> list[str]:
        return split_queries(content)

    def _body(self, search: Search, documents: Sequence[str]) -> str:
        body: dict[str, object] = {
            # The policy's own words come back as an observation: its near-tags are taken out like a passage's.
            "query": [neutralise(query) for query in search.queries],
            "documents": list(documents),
        }
        if search.dropped:
            body["note"] = (
                f"{search.dropped} more {'query was' if search.dropped == 1 else 'queries were'} not sent: "
                f"at most {self.max_queries} a turn, each of at most {MAX_QUERY_CHARS} characters."
            )
        return json.dumps(body, ensure_ascii=False, indent=2)

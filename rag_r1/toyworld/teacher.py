"""A scripted teacher: shows the policy how a question is answered, by playing the real protocol and retriever.

Model. The teacher thinks in fixed phrases, searches by names, reads the facts *in the passages that came back* (it
never looks at the golden answer) and answers. In multi-query mode it asks for everything that it can already name
in one turn; in single-query mode one after the other. What it writes and what it is shown are segments of a
demonstration, in order; the text of a whole trajectory is their concatenation.

Invariants:
- observations are `protocol.observation(...)` of what `protocol.parse` read from the teacher's own turn: what SFT
  shows is byte for byte what a rollout shows;
- a segment is model-written or not as a whole, so a loss mask never has to be found in text;
- with `laziness` 0 an answer follows from the passages. A lazy demonstration (see `LAZY`) is wrong on purpose.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rag_r1.data import QuestionRow
from rag_r1.protocols.base import Protocol, Search
from rag_r1.retrieval.types import Retriever
from rag_r1.toyworld.questions import FORM, Form, subjects
from rag_r1.toyworld.world import SENTENCES

THOUGHTS = {
    "need": "need the {relation} of {name}",
    "need_two": "need the {relation} of {name} and {other}",
    "read": "the {relation} of {name} is {value}",
    "note": "{name} {compared} {value}",
    "first": "so {compared} {value}",
    "known": "known",
}

LAZY = {
    "guess": "answers without a search, with the name that it was asked about",
    "nameless": "leaves the name out of the query, and answers from what comes back",
    "half_way": "stops after the first page of two",
}

_FACTS = [
    re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(sentence)) + "$") for sentence in SENTENCES.values()
]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a trajectory's text, all of it written by the policy or none of it."""

    text: str
    is_model: bool


@dataclass(slots=True)
class Demonstration:
    """One trajectory of the teacher. `lazy` names the laziness (a key of `LAZY`), empty where it did its work."""

    row: QuestionRow
    protocol: str
    segments: list[Segment] = field(default_factory=list)
    answer: str = ""
    lazy: str = ""
    rounds: int = 0


class PageNotFound(LookupError):
    """The passages of a search do not hold the page that the teacher looked for."""


class Teacher:
    """Demonstrates questions in one protocol.

    Args:
        protocol: what the teacher writes and reads.
        retriever: where its queries go.
        topk: passages a query.
        laziness: by question kind, the share of each sort of lazy demonstration (a key of `LAZY`); the rest does its work.
        seed: decides which questions are answered lazily and how.
    """

    def __init__(
        self,
        protocol: Protocol,
        retriever: Retriever,
        *,
        topk: int,
        laziness: Mapping[str, Mapping[str, float]] | None = None,
        seed: int = 0,
    ) -> None:
        self.protocol = protocol
        self.retriever = retriever
        self.topk = topk
        self.laziness = laziness or {}
        self.rng = random.Random(f"teacher:{protocol.name}:{seed}")

    async def demonstrate(self, row: QuestionRow) -> Demonstration:
        """Play `row`.

        Raises:
            PageNotFound: the retriever did not bring a page that the teacher needs.
            RetrievalError: the retriever failed.
        """
        form = FORM[row.metadata["form"]]
        names = subjects(row)
        demo = Demonstration(row, self.protocol.name, lazy=self._choose_laziness(form))
        if demo.lazy == "guess":
            self._answer(demo, [THOUGHTS["known"]], names[0])
        elif demo.lazy == "nameless":
            need = THOUGHTS["need"].format(relation=form.path[0], name=names[0])
            (page,) = await self._search(demo, [need], ["the " + form.path[0]])
            self._answer(demo, [], list(page[0].values())[1])
        elif form.kind == "comparison":
            await self._compare(demo, form, names)
        else:
            await self._chain(demo, form, names[0])
        return demo

    # -- strategies --------------------------------------------------------------------------------------------------

    async def _chain(self, demo: Demonstration, form: Form, name: str) -> None:
        thoughts: list[str] = []
        path = form.path[:1] if demo.lazy == "half_way" else form.path
        for relation in path:
            thoughts.append(THOUGHTS["need"].format(relation=relation, name=name))
            value = (await self._look_up(demo, thoughts, [name]))[0][relation]
            thoughts = [THOUGHTS["read"].format(relation=relation, name=name, value=value)]
            name = value
        self._answer(demo, thoughts, name)

    async def _compare(self, demo: Demonstration, form: Form, names: list[str]) -> None:
        compared, wanted = form.path
        names = names[:1] if demo.lazy == "half_way" else names
        at_once = self.protocol.max_queries
        notes: dict[str, str] = {}
        facts: list[dict[str, str]] = []
        for start in range(0, len(names), at_once):
            batch = names[start : start + at_once]
            need = THOUGHTS["need_two" if len(batch) > 1 else "need"]
            thought = need.format(relation=compared, name=batch[0], other=batch[-1])
            facts += await self._look_up(demo, [*notes, thought], batch)
            notes = {
                THOUGHTS["note"].format(name=name, compared=found[compared], value=found[wanted]): found[wanted]
                for name, found in zip(names, facts, strict=False)
            }
        first = min(facts, key=lambda found: found[compared])
        conclusion = THOUGHTS["first"].format(compared=first[compared], value=first[wanted])
        self._answer(demo, [*notes, conclusion], first[wanted])

    def _choose_laziness(self, form: Form) -> str:
        shares = self.laziness.get(form.kind, {})
        draw = self.rng.random()
        for lazy, share in shares.items():
            draw -= share
            if draw < 0:
                return lazy
        return ""

    # -- turns -------------------------------------------------------------------------------------------------------

    async def _look_up(
        self, demo: Demonstration, thoughts: Iterable[str], names: Sequence[str]
    ) -> list[dict[str, str]]:
        """Search for `names`; the facts on the page of each."""
        found = []
        for name, pages in zip(names, await self._search(demo, thoughts, names), strict=True):
            page = next((page for page in pages if page["name"] == name), None)
            if page is None:
                raise PageNotFound(f"{demo.row.id}: no page {name!r} among the top {self.topk}")
            found.append(page)
        return found

    async def _search(
        self, demo: Demonstration, thoughts: Iterable[str], queries: Sequence[str]
    ) -> list[list[dict[str, str]]]:
        """Write a search turn and its observation; for each query, the facts of the pages found."""
        turn = f"<think>{', '.join(thoughts)}</think><search>{', '.join(queries)}</search>"
        action = self.protocol.parse(turn)
        if not isinstance(action, Search):
            raise AssertionError(
                f"the protocol {self.protocol.name} does not read the teacher's turn {turn!r}: {action}"
            )
        results = await self.retriever.search(action.queries, self.topk)
        contents = [[passage.contents for passage in passages] for passages in results]
        observation = self.protocol.observation(action, [self.protocol.documents(texts) for texts in contents])
        demo.segments += [Segment(turn, True), Segment(observation, False)]
        demo.rounds += 1
        return [[read_page(text) for text in texts] for texts in contents]

    def _answer(self, demo: Demonstration, thoughts: Iterable[str], answer: str) -> None:
        demo.segments.append(Segment(f"<think>{', '.join(thoughts)}</think><answer>{answer}</answer>", True))
        demo.answer = answer


def read_page(contents: str) -> dict[str, str]:
    """The facts of a toy passage ("title   sentence"), with the entity's name under "name", in the sentence's order."""
    for pattern in _FACTS:
        match = pattern.search(contents)
        if match:
            return match.groupdict()
    raise ValueError(f"not a page of a toy world: {contents!r}; is the retriever serving another corpus?")

"""The rows of the SFT cold start, in the order in which a tiny policy can learn them.

Stages (a row's `stage`; the trainer goes through them in order):

0. short texts: notes about names to be looked up and copied, and first turns (what to search for);
1. single-hop questions;
2. questions of all kinds, half in each protocol.

Copying is the one skill that everything else needs and the slowest to appear. In a short text of nothing but names it
takes a minute; in whole trajectories, where most tokens are easy templates, it does not appear in five.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rag_r1.retrieval.types import Passage, Retriever
from rag_r1.toyworld import TOPK, toy_protocol
from rag_r1.toyworld.questions import KINDS, make_questions
from rag_r1.toyworld.teacher import THOUGHTS, PageNotFound, Segment, Teacher
from rag_r1.toyworld.world import YEARS, World, random_name

PROTOCOL_NAMES = ("single_query", "multi_query")


LAZINESS = {
    "single_hop": {"guess": 0.15, "nameless": 0.5},
    "bridge": {"guess": 0.15, "nameless": 0.25, "half_way": 0.1},
    "comparison": {"guess": 0.2, "nameless": 0.3},
}
"""The bad habits that PPO finds. Most are a minority, which only sampling shows; single-hop questions are searched without their
name more often than with it, so there the greedy policy is wrong, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How many rows of each sort, and how lazy the teacher is. Question counts are per protocol."""

    notes: int = 2000
    """Lists of notes to be copied in another order (stage 0)."""
    smallest: int = 3000
    """Lists of notes of which the earliest is asked for (stage 0)."""
    first_turns: int = 1000
    """First turns of each question kind (stage 0)."""
    single_hop: int = 2000
    """Whole single-hop trajectories (stage 1)."""
    whole: int = 3500
    """Whole trajectories of each question kind (stage 2)."""
    laziness: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: LAZINESS)
    """Shares of lazy trajectories in stage 2, by question kind; see `teacher.LAZY`."""


class Remembered:
    """A retriever that asks another one once a query, many at a time.

    The teacher's queries are titles, so the answers to all of them are fetched up front in large batches, which is
    several times as fast as query by query.
    """

    def __init__(self, retriever: Retriever, topk: int) -> None:
        self.retriever, self.topk = retriever, topk
        self.known: dict[str, list[Passage]] = {}

    async def fetch(self, queries: Iterable[str]) -> None:
        new = [query for query in dict.fromkeys(queries) if query not in self.known]
        if new:
            self.known.update(zip(new, await self.retriever.search(new, self.topk), strict=True))

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        if topk > self.topk:
            raise ValueError(f"only {self.topk} passages a query are remembered, asked for {topk}")
        await self.fetch(queries)
        return [self.known[query][:topk] for query in queries]


async def sft_rows(
    world: World,
    retriever: Retriever,
    recipe: Recipe,
    seed: int = 0,
    on_progress: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    """The SFT file: rows {"id", "stage", "kind", "protocol", "messages", "segments": [{"text", "is_model"}]}.

    Questions whose page the retriever does not find are left out. `on_progress` gets the number of rows made since
    the last call.
    """
    rng = random.Random(f"curriculum:{seed}")
    remembered = Remembered(retriever, TOPK)
    names = list(world.entities)
    rows: list[dict[str, Any]] = []

    def add(new: Iterable[dict[str, Any]]) -> None:
        for row in new:
            rows.append({"id": f"{len(rows):06d}", **row})
            if on_progress:
                on_progress(1)

    for start in range(0, len(names), 2000):
        await remembered.fetch(names[start : start + 2000])
    add(_notes(recipe.notes, rng))
    add(_smallest(recipe.smallest, rng))
    plans: list[tuple[int, dict[str, int], Mapping[str, Mapping[str, float]]]] = [
        (0, dict.fromkeys(KINDS, recipe.first_turns), {}),
        (1, {"single_hop": recipe.single_hop}, {}),
        (2, dict.fromkeys(KINDS, recipe.whole), recipe.laziness),
    ]
    for stage, per_kind, laziness in plans:
        for name in PROTOCOL_NAMES:
            protocol = toy_protocol(name)
            teacher = Teacher(protocol, remembered, topk=TOPK, laziness=laziness, seed=seed + stage)
            for question in make_questions(world, per_kind, seed=seed + stage):
                try:
                    demo = await teacher.demonstrate(question)
                except PageNotFound:
                    continue
                segments = demo.segments[:1] if stage == 0 else demo.segments
                messages = protocol.messages(question.question)
                add([_row(stage, messages, segments, kind=question.kind, protocol=name, lazy=demo.lazy)])
    return rows


def _notes(count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Notes (a name and what belongs to it) to be written down again in another order: look up and copy."""
    for _ in range(count):
        notes = [
            f"{random_name(rng)} {rng.choice(YEARS) if rng.random() < 0.4 else random_name(rng)}"
            for _ in range(rng.randint(4, 10))
        ]
        again = rng.sample(notes, len(notes))
        yield _row(0, [{"role": "user", "content": ", ".join(notes)}], [Segment(", ".join(again), True)])


def _smallest(count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Notes as the teacher makes them for a comparison, and its conclusion: the earliest year and what follows it."""
    for _ in range(count):
        years = rng.sample(YEARS, rng.randint(2, 4))
        notes = {year: random_name(rng) for year in years}
        listed = [THOUGHTS["note"].format(name=random_name(rng), compared=y, value=notes[y]) for y in years]
        conclusion = THOUGHTS["first"].format(compared=min(years), value=notes[min(years)])
        yield _row(0, [{"role": "user", "content": ", ".join(listed)}], [Segment(conclusion, True)])


def _row(stage: int, messages: list[dict[str, str]], segments: Sequence[Segment], **labels: str) -> dict[str, Any]:
    return {"stage": stage, **labels, "messages": messages, "segments": [asdict(segment) for segment in segments]}

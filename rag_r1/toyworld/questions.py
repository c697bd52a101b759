"""Questions over a toy world, each with its answer, its kind and the pages that tell the answer.

A question form is data: a kind, a wording and the relations to follow. Three kinds:

- `single_hop`: one page tells the answer;
- `bridge`: the first page only tells whose page to read next, so the searches depend on each other;
- `comparison`: two pages that do not depend on each other, which is where several queries in one turn save a
  round: which of two came first, and what does its page say? The answer is not in the question, so guessing does
  not pay (of "who was born first, A or B?" a policy that never searches gets half right).

Invariants: golden pages are given in the order in which they are read; the two years of a comparison differ; a
world's questions name entities of that world only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_r1.data import QuestionRow
from rag_r1.toyworld.world import Entity, World

KINDS = ("single_hop", "bridge", "comparison")
DATA_SOURCE = "toyworld"


@dataclass(frozen=True, slots=True)
class Form:
    """One way to ask about entities of the kind `subject`.

    `path` holds the relations that lead from page to page to the answer; for a comparison, the relation that is
    compared (the smaller wins) and the relation that is asked for, both on the page of the subject.
    """

    name: str
    kind: str
    subject: str
    path: tuple[str, ...]
    wording: str


FORMS = (
    Form("person_city", "single_hop", "person", ("city",), "In which city was {0} born?"),
    Form("person_year", "single_hop", "person", ("year",), "In which year was {0} born?"),
    Form("city_country", "single_hop", "city", ("country",), "In which country is the city {0}?"),
    Form("country_capital", "single_hop", "country", ("capital",), "What is the capital of the country {0}?"),
    Form("film_director", "single_hop", "film", ("director",), "Who directed the film {0}?"),
    Form("band_founder", "single_hop", "band", ("founder",), "Who founded the band {0}?"),
    Form("film_city", "bridge", "film", ("director", "city"), "In which city was the director of the film {0} born?"),
    Form("film_year", "bridge", "film", ("director", "year"), "In which year was the director of the film {0} born?"),
    Form("band_city", "bridge", "band", ("founder", "city"), "In which city was the founder of the band {0} born?"),
    Form("band_year", "bridge", "band", ("founder", "year"), "In which year was the founder of the band {0} born?"),
    Form("person_country", "bridge", "person", ("city", "country"), "In which country was {0} born?"),
    Form(
        "older_city", "comparison", "person", ("year", "city"), "In which city was the first born of {0} and {1} born?"
    ),
    Form(
        "older_director", "comparison", "film", ("year", "director"), "Who directed the first of the films {0} and {1}?"
    ),
    Form("older_founder", "comparison", "band", ("year", "founder"), "Who founded the first of the bands {0} and {1}?"),
)
FORM = {form.name: form for form in FORMS}


def make_questions(
    world: World, per_kind: dict[str, int], seed: int = 0, forms: Sequence[Form] = FORMS
) -> list[QuestionRow]:
    """Ask `per_kind[kind]` distinct questions of each kind, its forms in equal shares as far as entities last.

    Raises:
        ValueError: the world has too few entities for so many distinct questions of a kind.
    """
    rng = random.Random(f"questions:{world.name}:{seed}")
    rows: list[QuestionRow] = []
    for kind, count in per_kind.items():
        rows += _take_in_turn([_ask(world, form, rng) for form in forms if form.kind == kind], count, kind, world)
    rng.shuffle(rows)
    return rows


def subjects(row: QuestionRow) -> list[str]:
    """The entities that a question names (one, or two for a comparison)."""
    return [str(name) for name in row.metadata["subjects"]]


def _take_in_turn(sources: list[Iterator[QuestionRow]], count: int, kind: str, world: World) -> list[QuestionRow]:
    rows: list[QuestionRow] = []
    while sources and len(rows) < count:
        source = sources.pop(0)
        row = next(source, None)
        if row is not None:
            rows.append(row)
            sources.append(source)
    if len(rows) < count:
        raise ValueError(f"world {world.name!r} gives only {len(rows)} questions of kind {kind!r}, wanted {count}")
    return rows


def _ask(world: World, form: Form, rng: random.Random) -> Iterator[QuestionRow]:
    pool = world.of_kind(form.subject)
    if form.kind != "comparison":
        rng.shuffle(pool)
        for entity in pool:
            pages, answer = _follow(world, entity, form.path)
            yield _row(world, form, [entity.name], pages, answer)
        return
    compared, wanted = form.path
    asked: set[tuple[str, str]] = set()
    # The bound ends the search in a tiny world, where most pairs have been asked or share the year.
    for _ in range(20 * len(pool) ** 2):
        one, two = rng.sample(pool, 2)
        if (one.name, two.name) in asked or one.facts[compared] == two.facts[compared]:
            continue
        asked |= {(one.name, two.name), (two.name, one.name)}
        first = min(one, two, key=lambda entity: entity.facts[compared])
        yield _row(world, form, [one.name, two.name], [one.name, two.name], first.facts[wanted])


def _follow(world: World, entity: Entity, path: Sequence[str]) -> tuple[list[str], str]:
    """The pages read on the way from `entity` along `path`, and what the last of them tells."""
    pages, value = [], entity.name
    for relation in path:
        pages.append(value)
        value = world.entities[value].facts[relation]
    return pages, value


def _row(world: World, form: Form, names: list[str], pages: list[str], answer: str) -> QuestionRow:
    return QuestionRow(
        id=f"{world.name}:{form.name}:{'+'.join(names)}",
        question=form.wording.format(*names),
        golden_answers=[answer],
        data_source=DATA_SOURCE,
        kind=form.kind,
        metadata={"form": form.name, "subjects": names, "gold_pages": pages},
    )

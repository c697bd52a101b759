"""The toy encyclopedia: invented entities, one page each, every fact stated on exactly one page.

Model. A world is a set of entities of five kinds (person, city, country, film, band). An entity has a name that
is unique over *all* worlds of a seed and a few facts; a fact is a year or the name of another entity of the same
world. A page holds all facts of its entity in one sentence of a fixed form, in the KILT schema, so that the toy
passes through the same corpus, index and server code as Wikipedia.

Invariants:
- everything is a function of the seed and the sizes;
- no name occurs in two worlds: what is learnt in one world can be used in another, but not remembered there;
- a person's page does not tell the country, a film's page not the birthplace: such questions need two pages.

Names are a closed and an open syllable ("Kalmo", "Besnu"): the tokenizer gives each syllable one token, so a name
costs two tokens and copying it is easy to learn, while the 9,800 possible names are too many to remember.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

ONSETS = "bdfgklmnprstvz"
VOWELS = "aeiou"
CODAS = "nr"
FIRST_SYLLABLES = tuple((o + v + c).capitalize() for o in ONSETS for v in VOWELS for c in CODAS)
LAST_SYLLABLES = tuple(o + v for o in ONSETS for v in VOWELS)
YEARS = tuple(str(year) for year in range(1950, 1980))

WORLD_NAMES = ("sft", "rl_train", "rl_heldout")

SENTENCES = {
    "person": "{name} is a person born in the city {city} in the year {year}.",
    "city": "{name} is a city in the country {country}.",
    "country": "{name} is a country with the capital {capital}.",
    "film": "{name} is a film directed by {director} in the year {year}.",
    "band": "{name} is a band founded by {founder} in the year {year}.",
}


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing of the world: its unique name, its kind (a key of `SENTENCES`) and its facts by relation."""

    name: str
    kind: str
    facts: dict[str, str]

    def sentence(self) -> str:
        return SENTENCES[self.kind].format(name=self.name, **self.facts)

    def page(self) -> dict[str, Any]:
        """The page as a record of the KILT knowledge source: `text[0]` is the title, as there."""
        return {"wikipedia_title": self.name, "text": [self.name, self.sentence()]}


@dataclass(frozen=True, slots=True)
class WorldSize:
    """How many entities of each kind a world has. With as many cities as people, each is born in another city."""

    people: int
    cities: int
    countries: int
    films: int
    bands: int

    @property
    def total(self) -> int:
        return self.people + self.cities + self.countries + self.films + self.bands

    def scaled(self, factor: float) -> WorldSize:
        """The same mix, `factor` times as large, at least 4 of each kind (tests use tiny worlds)."""
        counts = (self.people, self.cities, self.countries, self.films, self.bands)
        return WorldSize(*(max(4, round(count * factor)) for count in counts))


SIZES = {
    "sft": WorldSize(people=1800, cities=1800, countries=500, films=700, bands=700),
    "rl_train": WorldSize(people=400, cities=400, countries=120, films=200, bands=200),
    "rl_heldout": WorldSize(people=250, cities=250, countries=80, films=125, bands=125),
}


@dataclass(frozen=True, slots=True)
class World:
    """Entities by name, in the order of their pages."""

    name: str
    entities: dict[str, Entity] = field(repr=False)

    def of_kind(self, kind: str) -> list[Entity]:
        return [entity for entity in self.entities.values() if entity.kind == kind]

    def pages(self) -> Iterator[dict[str, Any]]:
        """One KILT record per entity, people, cities and the rest mixed."""
        return (entity.page() for entity in self.entities.values())


def random_name(rng: random.Random) -> str:
    """A name that may or may not belong to an entity."""
    return rng.choice(FIRST_SYLLABLES) + rng.choice(LAST_SYLLABLES)


def build_worlds(seed: int = 0, sizes: dict[str, WorldSize] | None = None) -> dict[str, World]:
    """Make the worlds of `sizes` (default: `SIZES`), with no name in common.

    Raises:
        ValueError: the sizes ask for more names than there are.
    """
    sizes = SIZES if sizes is None else sizes
    names = [first + last for first in FIRST_SYLLABLES for last in LAST_SYLLABLES]
    wanted = sum(size.total for size in sizes.values())
    if wanted > len(names):
        raise ValueError(f"sizes ask for {wanted} entities but there are {len(names)} names; make the worlds smaller")
    random.Random(f"names:{seed}").shuffle(names)
    supply = iter(names)
    return {
        name: _build_world(name, list(islice(supply, size.total)), size, random.Random(f"{name}:{seed}"))
        for name, size in sizes.items()
    }


def _build_world(world_name: str, names: list[str], size: WorldSize, rng: random.Random) -> World:
    supply = iter(names)
    people, cities, countries, films, bands = (
        list(islice(supply, count)) for count in (size.people, size.cities, size.countries, size.films, size.bands)
    )

    def year() -> str:
        return rng.choice(YEARS)

    # Cycling uses every target as evenly as possible. A name that many pages share would be learnt by heart
    # and then preferred to the name that the passage tells.
    homes = list(zip(cities, cycle(countries), strict=False))
    capitals: dict[str, str] = {}
    for city, country in homes:
        capitals.setdefault(country, city)
    entities = [
        *(Entity(n, "person", {"city": c, "year": year()}) for n, c in zip(people, cycle(cities), strict=False)),
        *(Entity(city, "city", {"country": country}) for city, country in homes),
        *(Entity(country, "country", {"capital": capital}) for country, capital in capitals.items()),
        *(Entity(n, "film", {"director": p, "year": year()}) for n, p in zip(films, cycle(people), strict=False)),
        *(Entity(n, "band", {"founder": p, "year": year()}) for n, p in zip(bands, cycle(people[::-1]), strict=False)),
    ]
    rng.shuffle(entities)
    return World(world_name, {entity.name: entity for entity in entities})

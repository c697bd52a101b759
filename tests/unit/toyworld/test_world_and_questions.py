from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from toy_fakes import PER_KIND

from rag_r1.data import QuestionRow
from rag_r1.toyworld.questions import FORM, KINDS, make_questions, subjects
from rag_r1.toyworld.teacher import read_page
from rag_r1.toyworld.world import SIZES, World, build_worlds


def small(seed: int) -> dict[str, World]:
    return build_worlds(seed, {name: size.scaled(0.02) for name, size in SIZES.items()})


def test_same_seed_same_pages_and_questions() -> None:
    one, two, other = small(3), small(3), small(4)
    for name in SIZES:
        assert list(one[name].pages()) == list(two[name].pages())
        assert list(one[name].pages()) != list(other[name].pages())
        per_kind = dict.fromkeys(KINDS, 4)
        assert make_questions(one[name], per_kind, 1) == make_questions(two[name], per_kind, 1)
        assert make_questions(one[name], per_kind, 1) != make_questions(one[name], per_kind, 2)


def test_default_worlds_share_no_name_and_have_the_sizes_they_say() -> None:
    worlds = build_worlds(0)
    names = Counter(name for world in worlds.values() for name in world.entities)
    assert max(names.values()) == 1
    assert {name: len(world.entities) for name, world in worlds.items()} == {n: s.total for n, s in SIZES.items()}


def test_heldout_questions_and_answers_name_nothing_from_training(worlds: dict[str, World]) -> None:
    per_kind = dict.fromkeys(KINDS, 10)
    train, heldout = (make_questions(worlds[name], per_kind) for name in ("rl_train", "rl_heldout"))

    def names(rows: list[QuestionRow]) -> set[str]:
        found = {name for row in rows for name in (*row.metadata["gold_pages"], *row.golden_answers)}
        return {name for name in found if not name.isdigit()}

    assert names(train) and names(heldout)
    assert not names(train) & names(heldout)
    assert not any(name in row.question for row in heldout for name in worlds["rl_train"].entities)


def test_default_sizes_hold_the_questions_of_the_quickstart() -> None:
    worlds = build_worlds(0)
    for name, count in (("rl_train", 600), ("rl_heldout", 250)):
        rows = make_questions(worlds[name], dict.fromkeys(KINDS, count))
        assert Counter(row.kind for row in rows) == dict.fromkeys(KINDS, count)
        assert len({row.question for row in rows}) == len(rows)


def test_pages_are_kilt_records_and_read_back(world: World) -> None:
    for page in world.pages():
        title, sentence = page["text"]
        assert title == page["wikipedia_title"]
        entity = world.entities[title]
        assert read_page(f"{title}   {sentence}") == {"name": title, **entity.facts}


def test_every_fact_names_an_entity_of_its_world_or_a_year(world: World) -> None:
    for entity in world.entities.values():
        for relation, value in entity.facts.items():
            assert value.isdigit() if relation == "year" else value in world.entities


def test_golden_answer_is_on_the_last_golden_page(world: World, questions: list[QuestionRow]) -> None:
    assert Counter(row.kind for row in questions) == dict.fromkeys(KINDS, PER_KIND)
    for row in questions:
        gold = [world.entities[name] for name in row.metadata["gold_pages"]]
        (answer,) = row.golden_answers
        assert not list(row.problems())
        assert all(name in row.question for name in subjects(row))
        assert answer not in row.question
        if row.kind == "comparison":
            compared, wanted = FORM[row.metadata["form"]].path
            first, second = sorted(gold, key=lambda entity: entity.facts[compared])
            assert first.facts[compared] < second.facts[compared]
            assert answer == first.facts[wanted]
        else:
            assert answer in gold[-1].facts.values()
        # a bridge question needs its second page: the first does not tell the answer
        if row.kind == "bridge":
            assert len(gold) == 2
            assert answer not in gold[0].facts.values()


def test_too_small_a_world_is_refused_with_its_name(world: World) -> None:
    with pytest.raises(ValueError, match=r"'rl_train' gives only \d+ questions of kind 'bridge', wanted 9999"):
        make_questions(world, {"bridge": 9999})
    with pytest.raises(ValueError, match="make the worlds smaller"):
        build_worlds(0, {"sft": replace(SIZES["sft"], people=20_000)})

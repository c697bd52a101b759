"""What the toy's tests share: small worlds, questions, the tokenizer, a retriever."""

from __future__ import annotations

from typing import Any

import pytest
from toy_fakes import PER_KIND, ByTitle

from rag_r1.data import QuestionRow
from rag_r1.toyworld.questions import KINDS, make_questions
from rag_r1.toyworld.tokenizer import build_tokenizer
from rag_r1.toyworld.world import SIZES, World, build_worlds


@pytest.fixture(scope="session")
def worlds() -> dict[str, World]:
    return build_worlds(seed=7, sizes={name: size.scaled(0.1) for name, size in SIZES.items()})


@pytest.fixture(scope="session")
def world(worlds: dict[str, World]) -> World:
    return worlds["rl_train"]


@pytest.fixture(scope="session")
def questions(world: World) -> list[QuestionRow]:
    return make_questions(world, dict.fromkeys(KINDS, PER_KIND), seed=7)


@pytest.fixture
def retriever(world: World) -> ByTitle:
    return ByTitle(world)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer()

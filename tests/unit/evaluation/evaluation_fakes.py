"""A world without a model: questions "item K", an engine whose answers depend on question and seed, a retriever."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

from rag_r1.data import QuestionRow
from rag_r1.protocols import get_protocol
from rag_r1.retrieval.types import Passage, RetrievalError
from rag_r1.rollout import Budget, Generation, GenerationManager, SamplingParams

TIMINGS = ("wall_s", "concurrency")


class CharTokenizer:
    """One token a character (its code point)."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


class HashEngine:
    """Searches once, then answers; the answer is drawn from (question, temperature, seed), the delay is random."""

    def __init__(self, delay_s: float = 0.0, broken: Sequence[int] = ()) -> None:
        self.delay_s, self.broken = delay_s, set(broken)
        self.sampling: list[SamplingParams] = []
        self.in_flight = self.most_in_flight = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        self.sampling.append(sampling)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self.delay_s * random.random())
        self.in_flight -= 1
        text = "".join(map(chr, prompt_ids))
        item = int(re.findall(r"item (\d+)", text)[0])
        if item in self.broken:
            raise RuntimeError("out of memory")
        if f"about item {item}" in text:
            seed = sampling.seed if sampling.temperature else 0
            right = random.Random(f"{item} {seed}").random() < 0.6
            turn = f"<think>t</think> <answer>gold {item if right else 'else'}</answer>"
        else:
            turn = f"<think>t</think> <search>item {item}</search>"
        return Generation([ord(c) for c in turn], [-0.1] * len(turn), "stop")


class FakeRetriever:
    """One passage a query; fails where the query holds one of `broken`."""

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.broken = broken
        self.num_queries = 0

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        self.num_queries += len(queries)
        if any(word in query.split() for query in queries for word in self.broken):
            raise RetrievalError("http://nowhere does not answer")
        return [[Passage(7, f"Page   about {query} </information>", 0.5)] for query in queries]


def make_rows(count: int) -> list[QuestionRow]:
    return [
        QuestionRow(
            id=f"q{i}",
            question=f"What is item {i}?",
            golden_answers=[f"gold {i}"],
            data_source="fake",
            kind=("single_hop", "bridge")[i % 2],
        )
        for i in range(count)
    ]


def make_manager(engine: Any = None, retriever: Any = None, *, topk: int = 3) -> GenerationManager:
    return GenerationManager(
        engine or HashEngine(),
        retriever or FakeRetriever(),
        CharTokenizer(),
        get_protocol("multi_query"),
        Budget(),
        topk,
    )


def make_record(
    id: str, em: float, *, kind: str = "bridge", failed: bool = False, rounds: float = 1.0, sample: int = 0, **more: Any
) -> dict[str, Any]:
    """A record as the runner writes it."""
    return {
        "id": id,
        "sample": sample,
        "question": f"What is {id}?",
        "kind": kind,
        "data_source": "fake",
        "golden_answers": ["gold"],
        "answer": "gold" if em else "other",
        "end_reason": "engine_failed" if failed else "answer",
        "error": None,
        "failed": failed,
        "wall_s": 2.0,
        "concurrency": 4,
        "turns": [],
        "metrics": {"em": em, "f1": em, "cover_em": em, "rounds": rounds, "queries": 2 * rounds, "format_valid": 1.0},
        **more,
    }

"""What micro-batching and the answer cache are worth, and what the client adds to one perfect request.

    OMP_NUM_THREADS=1 python benchmarks/retrieval_server.py          about 3 minutes on two cores

The real server (start_retrieval.py, a process of its own) with MiniLM over 100,000 x 384, a flat index. Its vectors are random: what is
found does not matter here, what it costs does. 64 clients send one query a request, each as soon as its last is answered. Every
question is asked four times, in four rounds of different order, as the rollouts of one question would: three queries in four are
repeats. Clients and server have a core each (the server all but one, where there are more). Below each line: what the server spent on a
query that it searched, from its own /metrics, the warm-up included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from rag_r1.retrieval import PassageStore, RetrievalClient, SentenceEncoder, build_embeddings, build_index
from rag_r1.retrieval.passages import PassageWriter

ROOT = Path(__file__).resolve().parents[1]
ROWS, CLIENTS, ROUNDS, TOPK = 100_000, 64, 4, 3
TRAJECTORIES, QUERIES_EACH = 512, 3
CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []  # elsewhere nothing is pinned


class StandIn:
    """MiniLM for the first passage, by which the server knows its encoder; random unit vectors for the others."""

    def __init__(self, first: str = "First") -> None:
        self._first = first  # how the first passage begins
        self._minilm = SentenceEncoder("minilm", device="cpu")
        self.spec = self._minilm.spec
        self._numbers = np.random.default_rng(0)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._numbers.standard_normal((len(texts), self.spec.dim), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if texts[0].startswith(self._first):
            vectors[0] = self._minilm.encode_passages(texts[:1])[0]
        return vectors

    encode_queries = encode_passages


def make_index(directory: Path) -> None:
    if not directory.is_dir():
        with PassageWriter(directory) as writer:
            for row in range(ROWS):
                writer.write(f"{'First' if row == 0 else 'Page'} {row}   {'some words of a passage ' * 20}{row}")
    build_embeddings(directory, StandIn())
    build_index(directory)
    PassageStore(directory).close()


def make_questions(count: int, seed: int) -> list[str]:
    """Different queries of four to eight words, as search agents write them."""
    dice = random.Random(seed)
    names = ["Ada Lovelace", "Marie Curie", "Alan Turing", "Grace Hopper", "Niels Bohr", "Emmy Noether", "Isaac Newton"]
    things = ["river", "university", "film", "battle", "novel", "bridge", "orchestra", "island", "museum", "treaty"]
    asked = ["birthplace of", "who founded", "director of", "when was", "country of", "parents of", "award won by"]
    return [f"{dice.choice(asked)} {dice.choice(names)} {dice.choice(things)} {n}" for n in range(count)]


def pin(process_id: int, cores: Sequence[int]) -> None:
    if cores:
        os.sched_setaffinity(process_id, cores)


@contextmanager
def server(index: Path, *flags: str) -> Iterator[str]:
    command = [
        sys.executable,
        str(ROOT / "start_retrieval.py"),
        "--index",
        str(index),
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        [*command, "--skip-hashes", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    pin(process.pid, CORES[1:] or CORES)  # before it has threads: they inherit it
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("ready"):
        raise RuntimeError(f"the server ended with status {process.wait()}: {line}")
    try:
        yield line.split()[1].rstrip(",").removesuffix("/retrieve")
    finally:
        process.terminate()
        process.wait()


async def single_queries(url: str, questions: list[str]) -> tuple[float, list[float]]:
    """Queries a second, and the seconds of each."""
    rounds = [random.Random(turn).sample(questions, len(questions)) for turn in range(ROUNDS)]
    todo = iter([question for round in rounds for question in round])
    times: list[float] = []

    async def client(session: aiohttp.ClientSession) -> None:
        for question in todo:
            start = time.perf_counter()
            async with session.post(f"{url}/retrieve", json={"queries": [question], "topk": TOPK}) as reply:
                found: Any = await reply.json()
                assert reply.status == 200 and len(found["result"][0]) == TOPK, found
            times.append(time.perf_counter() - start)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        start = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
        return len(times) / (time.perf_counter() - start), times


async def cost(url: str) -> str:
    """Milliseconds a searched query took in each stage, and queries a batch, since the server's start."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as reply:
        families = text_string_to_metric_families(await reply.text())
    values = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    searched = values["retrieval_queries_total", "search"]
    stages = {key[1]: value for key, value in values.items() if key[0] == "retrieval_stage_seconds_sum"}
    told = ", ".join(f"{stage} {seconds / searched * 1e3:.1f} ms" for stage, seconds in stages.items())
    return (
        f"{searched:.0f} searched, {searched / values['retrieval_batch_queries_count',]:.1f} together; a query: {told}"
    )


async def step(url: str, repeats: int) -> tuple[float, float]:
    """Median seconds of a step's searches through the client, and as one request."""
    through_client, one_request = [], []
    async with aiohttp.ClientSession() as session, RetrievalClient(url) as client:
        for repeat in range(repeats):
            questions = make_questions(TRAJECTORIES * QUERIES_EACH, 100 + repeat)
            start = time.perf_counter()
            await asyncio.gather(
                *(client.search(questions[n : n + QUERIES_EACH], TOPK) for n in range(0, len(questions), QUERIES_EACH))
            )
            through_client.append(time.perf_counter() - start)
            start = time.perf_counter()
            async with session.post(f"{url}/retrieve", json={"queries": questions, "topk": TOPK}) as reply:
                assert len((await reply.json())["result"]) == len(questions)
            one_request.append(time.perf_counter() - start)
    return statistics.median(through_client), statistics.median(one_request)


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of the retrieval server, as ratios.")
    parser.add_argument(
        "--work", type=Path, default=Path("outputs/benchmarks/server_index"), help="where the index goes"
    )
    parser.add_argument("--questions", type=int, default=500, help="different ones; each is asked four times")
    args = parser.parse_args()
    make_index(args.work)
    questions = make_questions(args.questions, 0)
    pin(os.getpid(), CORES[:1])
    base = 0.0
    for name, *flags in (
        ("one at a time, no cache", "--max-batch", "1", "--cache-mb", "0"),
        ("batches, no cache", "--cache-mb", "0"),
        ("batches and cache",),
    ):
        with server(args.work, *flags) as url:
            asyncio.run(single_queries(url, make_questions(50, 1)))  # warm
            rate, times = asyncio.run(single_queries(url, questions))
            told = asyncio.run(cost(url))
        base = base or rate
        p50, p99 = np.percentile(times, [50, 99]) * 1e3
        print(
            f"{name:24} {rate:7.1f} queries/s   p50 {p50:6.0f} ms   p99 {p99:6.0f} ms   {rate / base:5.2f} x\n"
            f"    {told}",
            flush=True,
        )
    with server(args.work, "--cache-mb", "0", "--queries-limit", "2048") as url:
        client_s, request_s = asyncio.run(step(url, 3))
    print(
        f"{TRAJECTORIES} trajectories x {QUERIES_EACH}: client {client_s:.2f} s, one request {request_s:.2f} s, "
        f"{client_s / request_s:.2f} x"
    )


if __name__ == "__main__":
    main()

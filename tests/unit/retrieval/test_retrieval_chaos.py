"""Sixteen clients on a bad network, whose server is killed and started again in the middle."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from chaos_server import right_answer

from rag_r1.retrieval import Passage, RetrievalClient, RetrievalError

ROOT = Path(__file__).resolve().parents[3]
CLIENTS, ROUNDS, QUERIES = 16, 30, 3


def start(port: int, seed: int) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, str(Path(__file__).with_name("chaos_server.py")), str(port), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready"), f"the server ended with status {process.wait()}"
    return process, int(line.split()[1])


@pytest.mark.timeout(90)
def test_every_answer_is_right_none_is_lost_and_errors_are_typed() -> None:
    process, port = start(0, seed=1)
    answered: list[tuple[list[str], int, list[list[Passage]]]] = []
    failed: list[BaseException] = []
    calls = 0
    up = asyncio.Event()
    up.set()

    async def client(number: int) -> None:
        nonlocal calls
        dice = random.Random(number)
        # a short timeout and few tries: the outage must be felt by some
        async with RetrievalClient(
            f"http://127.0.0.1:{port}", timeout_s=2, max_retries=4, backoff_s=0.1, max_batch=16
        ) as retriever:
            for turn in range(ROUNDS):
                queries = [f"client {number} turn {turn} query {n}" for n in range(QUERIES)] + ["what all ask"]
                topk = dice.choice([1, 3])
                calls += 1
                try:
                    answered.append((queries, topk, await retriever.search(queries, topk)))
                except BaseException as error:
                    failed.append(error)
                    await up.wait()  # so that the failures do not grow with the time the server needs to start

    async def outage() -> None:
        nonlocal process
        while calls < CLIENTS * ROUNDS // 3:
            await asyncio.sleep(0.01)
        up.clear()
        process.kill()
        process.wait()
        await asyncio.sleep(0.5)
        process, _ = await asyncio.to_thread(start, port, 2)
        up.set()

    async def run() -> None:
        await asyncio.wait_for(asyncio.gather(outage(), *(client(number) for number in range(CLIENTS))), 80)

    try:
        asyncio.run(run())
    finally:
        process.kill()
        process.wait()
    assert calls == CLIENTS * ROUNDS == len(answered) + len(failed), "every call ends, in an answer or an error"
    for queries, topk, answers in answered:
        found = [[(hit.id, hit.contents) for hit in hits] for hits in answers]
        assert found == [right_answer(query, topk) for query in queries]
    assert all(isinstance(error, RetrievalError) for error in failed), failed
    assert len(answered) > 0.9 * calls, f"{len(failed)} of {calls} failed: {failed[:2]}"

"""The runner: every question once through the generation manager that training uses, scored by training's reward.

Model. `concurrency` workers take (question, sample) pairs in order; each pair is one `GenerationManager.run`, appended
to `out_path` as soon as it is finished. Batching is the business of the engine and of the retrieval client.

Invariants:

* Every question is scored exactly once, however often the run is killed and started again (see `results`).
* The order of the result is the order of the rows, and scores do not depend on concurrency or on the order in which
  questions end: each sample has a seed of its own, made from the run's seed, the question's id and the sample's number.
* Temperature and n are the run's own; nothing of training's sampling leaks in (Search-R1 PR 20).
* A failed engine or retriever costs that question only; it is recorded as failed and not counted as wrong.

Departures from the original's scripts: they play one question at a time, stop without a last generation, parse the
prompt, normalise answers in another way than training, and write at the very end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.data import QuestionRow
from rag_r1.evaluation.progress import Scoreboard
from rag_r1.evaluation.results import Record, key, read_records, resume, write_records
from rag_r1.rollout import GenerationManager, SamplingParams, TrajectoryRecorder
from rag_r1.rollout.metrics import trajectory_metrics

FAILURES = frozenset({"engine_failed", "retrieval_failed"})
"""End reasons that are worth another try; any other one is the policy's and counts."""


async def evaluate(
    rows: Sequence[QuestionRow],
    manager: GenerationManager,
    sampling: SamplingParams,
    *,
    out_path: str | os.PathLike[str],
    concurrency: int,
    n: int = 1,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> list[Record]:
    """Play and score `rows`; return their records (`n` each) in the order of `rows`.

    Args:
        sampling: of this evaluation; `max_tokens` bounds a turn, and a temperature above 0 needs a `seed`.
        out_path: JSONL file of results; one that is there is continued.
        concurrency: questions at once.
        settings: facts about model, data and retriever that go into the settings beside `out_path`, with those of the
            manager and of `sampling`; the run is continued only where they are the same.

    ValueError: ids that are not unique, a setting that cannot be, or an `out_path` of another run (see `resume`).
    Failed questions are in the result with `failed` true; start again to retry them.
    """
    path = Path(out_path)
    if sampling.temperature == 0:
        sampling = dataclasses.replace(sampling, seed=None)  # nothing is drawn
    _check(rows, sampling, n, concurrency)
    order = [(row.id, sample) for row in rows for sample in range(n)]
    with resume(path, {**(settings or {}), **_run_settings(manager, sampling, n)}) as done:
        _check_same_questions(path, done, rows, set(order))
        scored = {key(record) for record in done}
        pending = iter([(row, sample) for row in rows for sample in range(n) if (row.id, sample) not in scored])
        with TrajectoryRecorder(path, with_contents=True) as recorder, Scoreboard(len(order), done, progress) as board:

            async def work() -> None:
                for row, sample in pending:  # one iterator for all workers
                    record = await _play(row, sample)
                    board.add(record["em"], failed=record["failed"])

            async def _play(row: QuestionRow, sample: int) -> dict[str, Any]:
                started = time.perf_counter()
                seed = None if sampling.seed is None else _seed(sampling.seed, row.id, sample)
                own = dataclasses.replace(sampling, seed=seed)
                trajectory = await manager.run(row.question, own, trajectory_id=row.id)
                metrics = trajectory_metrics(trajectory, row.golden_answers)
                failed = trajectory.end_reason in FAILURES
                recorder.write(
                    trajectory,
                    sample=sample,
                    kind=row.kind,
                    data_source=row.data_source,
                    golden_answers=list(row.golden_answers),
                    metrics=metrics,
                    failed=failed,
                    wall_s=round(time.perf_counter() - started, 6),
                    concurrency=concurrency,
                )
                return {"em": metrics["em"], "failed": failed}

            await _all_or_none([work() for _ in range(min(concurrency, len(order) - len(scored)))])
        by_key = {key(record): record for record in read_records(path)}
        records = [by_key[k] for k in order]
        write_records(path, records)
    return records


async def _all_or_none(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all; the first error (or Ctrl-C) ends the others before it goes on."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _seed(seed: int, question_id: str, sample: int) -> int:
    digest = hashlib.blake2b(f"{seed}\0{question_id}\0{sample}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def _run_settings(manager: GenerationManager, sampling: SamplingParams, n: int) -> dict[str, Any]:
    protocol = manager.protocol
    prompt = hashlib.sha256(protocol.prompt_template.encode()).hexdigest()[:16]
    return {
        "protocol": {"name": protocol.name, "max_queries": protocol.max_queries, "prompt_sha256": prompt},
        "topk": manager.topk,
        "budget": dataclasses.asdict(manager.budget),
        "sampling": {**dataclasses.asdict(sampling), "n": n},
    }


def _check(rows: Sequence[QuestionRow], sampling: SamplingParams, n: int, concurrency: int) -> None:
    if n < 1 or concurrency < 1:
        raise ValueError(f"n={n} and concurrency={concurrency} must be at least 1")
    if sampling.temperature == 0 and n > 1:
        raise ValueError(f"temperature=0 with n={n}: greedy samples are all the same; set n=1 or a temperature above 0")
    if sampling.temperature > 0 and sampling.seed is None:
        raise ValueError(
            f"temperature={sampling.temperature} needs a seed, so that the run can be repeated and resumed"
        )
    twice = [id for id, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise ValueError(f"question ids must be unique, but {len(twice)} are not, e.g. {twice[0]!r}")


def _check_same_questions(
    path: Path, done: Sequence[Record], rows: Sequence[QuestionRow], wanted: set[tuple[str, int]]
) -> None:
    """More rows than before may be added to a run, but it must not hold others."""
    known = {row.id: row for row in rows}
    for record in done:
        row = known.get(record["id"])
        same = row is not None and key(record) in wanted and record["question"] == row.question
        if row is None or not same or record["golden_answers"] != list(row.golden_answers):
            raise ValueError(
                f"{path} holds a result of question {record['id']!r} (sample {record['sample']}) that is not among the "
                "rows, or is another question there: give another place, or delete it"
            )

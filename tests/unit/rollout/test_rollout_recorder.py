"""TrajectoryRecorder: whole lines, whoever writes at the same time."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
from pathlib import Path

import pytest

from rag_r1.rollout import Trajectory, TrajectoryRecorder, Turn


def finished(id: str, text: str) -> Trajectory:
    trajectory = Trajectory(id, "q?", [1])
    trajectory.append_policy([2], [-0.5])
    trajectory.turns.append(Turn(text, "answer", 1, "stop", answer="x"))
    trajectory.finish("answer")
    return trajectory


def write_many(path: str, writer: int) -> None:
    with TrajectoryRecorder(path) as recorder:
        for i in range(50):
            recorder.write(finished(f"{writer}-{i}", "Dvořák\n" * 2000), step=i)


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "trajectories.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_many, args=(str(path), n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert {r["id"] for r in records} == {f"{w}-{i}" for w in range(3) for i in range(50)}
    assert all(r["turns"][0]["text"] == "Dvořák\n" * 2000 and r["answer"] == "x" for r in records)


def test_coroutines_share_a_recorder_and_reopening_appends(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"

    async def one(recorder: TrajectoryRecorder, i: int) -> None:
        await asyncio.sleep(0)
        recorder.write(finished(str(i), "t"), reward=1.0)

    async def everything() -> None:
        with TrajectoryRecorder(path) as recorder:
            await asyncio.gather(*(one(recorder, i) for i in range(20)))

    asyncio.run(everything())
    asyncio.run(everything())
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == 40 and all(r["reward"] == 1.0 for r in records)


def test_extra_fields_nan_is_null_and_clashes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with TrajectoryRecorder(path) as recorder:
        recorder.write(finished("a", "t"), reward=math.nan)
        with pytest.raises(ValueError, match=r"\['answer'\] are already in the record"):
            recorder.write(finished("b", "t"), answer="mine")
    assert [json.loads(line)["reward"] for line in path.read_text().splitlines()] == [None]

"""Every question exactly once, whatever happens to the run; scores that depend on question, model and seed alone."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
from evaluation_fakes import TIMINGS, FakeRetriever, HashEngine, make_manager, make_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.evaluation import evaluate, read_records
from rag_r1.evaluation.results import settings_path
from rag_r1.rewards import score
from rag_r1.rollout import SamplingParams

GREEDY = SamplingParams(max_tokens=100, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=100, temperature=0.7, seed=5)


def run(
    path: Path,
    *,
    count: int = 10,
    manager: Any = None,
    sampling: SamplingParams = GREEDY,
    concurrency: int = 4,
    **more: Any,
) -> list[dict[str, Any]]:
    manager = manager or make_manager()
    rows = make_rows(count)
    return asyncio.run(
        evaluate(rows, manager, sampling, out_path=path, concurrency=concurrency, progress=False, **more)
    )


def stable(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what a clock wrote."""
    kept = []
    for record in records:
        record = {name: value for name, value in record.items() if name not in TIMINGS}
        record["turns"] = [{k: v for k, v in turn.items() if not k.endswith("_s")} for turn in record["turns"]]
        kept.append(record)
    return kept


def test_case_165_every_row_is_scored_in_the_same_order_twice(tmp_path: Path) -> None:
    first = run(tmp_path / "a.jsonl", concurrency=4)
    second = run(tmp_path / "b.jsonl", concurrency=4)
    assert [record["id"] for record in first] == [f"q{i}" for i in range(10)]
    assert stable(first) == stable(second)
    assert 0 < sum(record["metrics"]["em"] for record in first) < 10


def test_case_170_order_of_completion_and_concurrency_change_nothing(tmp_path: Path) -> None:
    alone = run(tmp_path / "a.jsonl", count=24, concurrency=1, sampling=SAMPLED, n=2)
    engine = HashEngine(delay_s=0.01)
    together = run(tmp_path / "b.jsonl", count=24, concurrency=16, sampling=SAMPLED, n=2, manager=make_manager(engine))
    assert engine.most_in_flight == 16
    assert stable(alone) == stable(together)
    assert [(r["id"], r["sample"]) for r in together] == [(f"q{i}", s) for i in range(24) for s in range(2)]
    assert read_records(tmp_path / "b.jsonl") == together


def test_samples_of_a_question_and_seeds_of_a_run_differ(tmp_path: Path) -> None:
    answers = {
        seed: [
            r["answer"]
            for r in run(tmp_path / f"{seed}.jsonl", sampling=dataclasses.replace(SAMPLED, seed=seed), n=4, count=8)
        ]
        for seed in (1, 2)
    }
    assert answers[1] != answers[2]
    assert any(len(set(answers[1][i : i + 4])) > 1 for i in range(0, 32, 4))


def test_case_168_evaluation_has_its_own_temperature_and_n(tmp_path: Path) -> None:
    engine = HashEngine()
    records = run(tmp_path / "a.jsonl", count=3, manager=make_manager(engine), sampling=SAMPLED, n=2)
    assert {sampling.temperature for sampling in engine.sampling} == {0.7}
    assert len(records) == 6 and len({sampling.seed for sampling in engine.sampling}) == 12  # each turn, each sample
    assert json.loads(settings_path(tmp_path / "a.jsonl").read_text())["sampling"]["n"] == 2
    engine.sampling.clear()
    run(tmp_path / "b.jsonl", count=3, manager=make_manager(engine))
    assert {sampling.temperature for sampling in engine.sampling} == {0.0}


def test_case_169_metrics_are_those_of_the_reward(tmp_path: Path) -> None:
    for record in run(tmp_path / "a.jsonl"):
        assert record["metrics"].items() >= score(record["answer"], record["golden_answers"]).items()


@settings(max_examples=15, deadline=None)
@given(share=st.floats(0, 1))
def test_a_file_cut_at_any_byte_is_completed(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    whole = run(path, count=6)
    content = path.read_bytes()
    cut = content[: round(share * len(content))]
    path.write_bytes(cut)
    kept = cut.count(b"}\n")
    retriever = FakeRetriever()
    again = run(path, count=6, manager=make_manager(retriever=retriever))
    assert stable(again) == stable(whole)
    assert [record["id"] for record in read_records(path)] == [f"q{i}" for i in range(6)]
    assert retriever.num_queries in (6 - kept, 5 - kept)  # one less where just the newline was lost
    assert again[: min(kept, 6)] == whole[: min(kept, 6)]  # kept as they were, with their timings


def test_a_cancelled_run_keeps_what_is_scored(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    async def stop_half_way() -> None:
        manager = make_manager(HashEngine(delay_s=0.02))
        task = asyncio.create_task(
            evaluate(make_rows(40), manager, GREEDY, out_path=path, concurrency=4, progress=False)
        )
        while not path.exists() or path.read_bytes().count(b"\n") < 8:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop_half_way())
    before = {record["id"]: record for record in read_records(path)}
    assert 8 <= len(before) < 40
    retriever = FakeRetriever()
    after = run(path, count=40, manager=make_manager(retriever=retriever))
    assert retriever.num_queries == 40 - len(before)
    assert [record["id"] for record in after] == [f"q{i}" for i in range(40)]
    assert all(record == before.get(record["id"], record) for record in after)


def test_an_unforeseen_error_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    class Buggy(FakeRetriever):
        async def search(self, queries: Any, topk: int) -> Any:
            if "5" in queries[0]:
                raise TypeError("a bug")
            return await super().search(queries, topk)

    with pytest.raises(TypeError, match="a bug"):
        run(tmp_path / "a.jsonl", manager=make_manager(retriever=Buggy()), concurrency=1)
    assert [record["id"] for record in read_records(tmp_path / "a.jsonl")] == [f"q{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("manager", "reason"),
    [
        (make_manager(HashEngine(broken=[2, 5])), "engine_failed"),
        (make_manager(retriever=FakeRetriever(["2", "5"])), "retrieval_failed"),
    ],
)
def test_failures_are_recorded_and_only_they_are_tried_again(tmp_path: Path, manager: Any, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    first = run(path, manager=manager)
    assert [(r["id"], r["end_reason"]) for r in first if r["failed"]] == [("q2", reason), ("q5", reason)]
    assert all(record["error"] for record in first if record["failed"])
    retriever = FakeRetriever()
    second = run(path, manager=make_manager(retriever=retriever))
    assert retriever.num_queries == 2 and not any(record["failed"] for record in second)
    assert [r for r in second if r["id"] not in ("q2", "q5")] == [r for r in first if not r["failed"]]
    assert stable(second) == stable(run(tmp_path / "b.jsonl"))


def test_more_questions_may_join_a_run_but_not_leave_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    few = run(path, count=4)
    assert run(path, count=9)[:4] == few
    with pytest.raises(ValueError, match=r"'q4'.* not among the"):
        run(path, count=4)


def test_another_setting_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    before = run(path, settings={"model": {"name": "m", "fingerprint": "1"}})
    with pytest.raises(ValueError, match=r"model\.fingerprint: '1' -> '2'"):
        run(path, settings={"model": {"name": "m", "fingerprint": "2"}})
    with pytest.raises(ValueError, match="topk: 3 -> 2"):
        run(path, settings={"model": {"name": "m", "fingerprint": "1"}}, manager=make_manager(topk=2))
    with pytest.raises(ValueError, match=r"sampling\.temperature: 0\.0 -> 0\.7"):
        run(path, settings={"model": {"name": "m", "fingerprint": "1"}}, sampling=SAMPLED)
    assert read_records(path) == before


def test_results_without_settings_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl")
    settings_path(tmp_path / "a.jsonl").unlink()
    with pytest.raises(ValueError, match="no readable settings"):
        run(tmp_path / "a.jsonl")


def test_a_second_process_on_the_file_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl")
    with settings_path(tmp_path / "a.jsonl").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another evaluation"):
            run(tmp_path / "a.jsonl")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run(path, count=3)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{}\n" + lines[2])
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: not a record"):
        run(path, count=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"n": 2}, "greedy samples are all the same"),
        ({"sampling": SamplingParams(max_tokens=9)}, "needs a seed"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "a.jsonl", **change)
    assert not list(tmp_path.iterdir())


def test_ids_must_be_unique(tmp_path: Path) -> None:
    rows = [*make_rows(3), make_rows(1)[0]]
    with pytest.raises(ValueError, match=r"unique.*'q0'"):
        asyncio.run(evaluate(rows, make_manager(), GREEDY, out_path=tmp_path / "a", concurrency=1, progress=False))


def test_the_progress_bar_shows_running_em(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_rows(10)
    records = asyncio.run(evaluate(rows, make_manager(), GREEDY, out_path=tmp_path / "a.jsonl", concurrency=2))
    em = sum(record["metrics"]["em"] for record in records) / 10
    shown = " ".join(capsys.readouterr().err.split())
    assert "10/10" in shown and f"EM {em:.3f}" in shown

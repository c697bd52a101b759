"""Reports: the numbers, the plots, the warnings, and text that cannot break out of the page."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluation_fakes import make_record

from rag_r1.evaluation.document import Example, Table, Text
from rag_r1.evaluation.report import write_report
from rag_r1.evaluation.results import settings_path, write_records
from rag_r1.evaluation.training_metrics import PANELS, SCORE, curves, read_metrics

PNG = b"\x89PNG\r\n\x1a\n"
REPOSITORY = Path(__file__).resolve().parents[3]


def turn(action: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "text": text,
        "reason": "",
        "queries": [],
        "passages": [],
        "executed": False,
        "tokens": 9,
        **more,
    }


def make_run(folder: Path, ems: list[float], *, temperature: float = 0.0, **settings: Any) -> Path:
    """An evaluation of questions a0, a1, ... with these EMs, alternately single_hop and bridge."""
    folder.mkdir(parents=True)
    search = turn("search", "<search>x</search>", queries=["x"], executed=True)
    search["passages"] = [[{"id": 4, "score": 0.25, "contents": "Page   <script>alert(1)</script>"}]]
    records = [
        make_record(
            f"a{i}", em, kind=("single_hop", "bridge")[i % 2], turns=[search, turn("answer", "<answer>gold</answer>")]
        )
        for i, em in enumerate(ems)
    ]
    write_records(folder / "results.jsonl", records)
    sampling = {"temperature": temperature, "seed": 0}
    facts = {"model": {"name": folder.name}, "sampling": sampling, "topk": 3, "retriever": {"rows": 100}} | settings
    settings_path(folder / "results.jsonl").write_text(json.dumps(facts))
    return folder


def make_metrics(path: Path, *, half_line: bool = False) -> Path:
    lines = [
        json.dumps(
            {"step": s, "data": {"search/em": s / 10, "search/em/bridge": s / 20, "actor/entropy": 1.0, "name": "x"}}
        )
        for s in range(1, 6)
    ]
    path.write_text("\n".join(lines) + "\n" + ('{"step": 6, "da' if half_line else ""))
    return path


def test_the_report_holds_numbers_plots_paths_and_examples(tmp_path: Path) -> None:
    before = make_run(tmp_path / "before", [1.0, 0.0, 0.0, 0.0])
    after = make_run(tmp_path / "after", [1.0, 1.0, 1.0, 0.0])
    metrics = make_metrics(tmp_path / "metrics.jsonl", half_line=True)
    report = write_report(
        tmp_path / "report", before=[before], after=[after], metrics=metrics, facts={"checkpoint": "runs/step_5"}
    )
    assert not report.warnings
    markdown, page = report.markdown.read_text(), report.html.read_text()
    line = next(line for line in markdown.splitlines() if line.startswith("| bridge | 2 |"))
    assert line.startswith("| bridge | 2 | 0.000 | 0.500 | +0.500 ")
    for text in ("runs/step", "retriever.rows", "rounds", "queries", "s/question", "questions at once"):
        assert text in markdown and text in page
    assert "before training: wrong" in page and "What is a1?" in page  # a1 was mended by training
    images = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([^\"]+)", page)]
    assert len(images) == 3 and all(image.startswith(PNG) for image in images)
    for link in re.findall(r"\]\((plots/[^)]+)\)", markdown):
        assert (tmp_path / "report" / link).read_bytes() in images
    assert "http" not in page and "<script" not in page  # self-contained, and passages are data


def test_samplings_are_matched(tmp_path: Path) -> None:
    runs = {
        (side, t): make_run(tmp_path / f"{side}{t}", [em, em], temperature=t)
        for side, em in (("before", 0.0), ("after", 1.0))
        for t in (0.0, 1.0)
    }
    report = write_report(
        tmp_path / "report",
        before=[runs["before", 1.0], runs["before", 0.0]],
        after=[runs["after", 0.0], runs["after", 1.0]],
    )
    assert list(report.tables) == ["greedy", "sampled (temperature 1)"]
    assert all(table.rows[-1][2:5] == ["0.000", "1.000", "+1.000 [+1.000, +1.000]"] for table in report.tables.values())
    assert not report.warnings
    with pytest.raises(ValueError, match="both greedy"):
        write_report(tmp_path / "r", before=[], after=[runs["before", 0.0], runs["after", 0.0]])


def test_case_166_what_differs_beside_the_model_is_named(tmp_path: Path) -> None:
    before = make_run(tmp_path / "before", [0.0, 0.0])
    after = make_run(tmp_path / "after", [1.0, 1.0, 1.0], topk=5, retriever={"rows": 200})
    report = write_report(tmp_path / "report", before=[before], after=[after])
    assert "topk: 3 -> 5; retriever.rows: 100 -> 200" in report.warnings[0] and "model" not in report.warnings[0]
    assert "different questions" in report.warnings[1]
    assert "retriever.rows: 100" in report.markdown.read_text()
    assert "retriever.rows: 100" in report.html.read_text()


def test_before_and_metrics_may_be_missing(tmp_path: Path) -> None:
    after = make_run(tmp_path / "after", [1.0, 0.0])
    report = write_report(tmp_path / "report", before=[], after=[after])
    assert not report.warnings and "| kind | n | EM | rounds |" in report.markdown.read_text()
    (tmp_path / "empty.jsonl").touch()
    report = write_report(tmp_path / "report", before=[], after=[after], metrics=tmp_path / "empty.jsonl")
    assert "no score over steps" in report.warnings[0]


def test_failed_questions_are_a_warning(tmp_path: Path) -> None:
    after = make_run(tmp_path / "after", [1.0, 0.0])
    write_records(after / "results.jsonl", [make_record("a0", 1.0), make_record("a1", 0.0, failed=True)])
    assert "1 questions failed" in write_report(tmp_path / "report", before=[], after=[after]).warnings[0]


def test_metrics_are_read_step_by_step(tmp_path: Path) -> None:
    metrics = read_metrics(make_metrics(tmp_path / "m.jsonl", half_line=True))
    assert metrics["search/em"] == {step: step / 10 for step in range(1, 6)}
    assert "name" not in metrics
    (tmp_path / "bad.jsonl").write_text('{"step": 1, "data": {}}\nnonsense\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2"):
        read_metrics(tmp_path / "bad.jsonl")


def test_a_resumed_run_is_read_from_its_folder_in_the_order_of_writing(tmp_path: Path) -> None:
    for name, value in {"metrics-10": 0.3, "metrics": 0.1, "metrics-2": 0.2}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"step": 1, "data": {"search/em": value}}) + "\n")
    assert read_metrics(tmp_path)["search/em"] == {1: 0.3}
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no metrics"):
        read_metrics(tmp_path / "empty")


def test_panels_take_the_first_source_that_was_logged() -> None:
    series = {1: 0.5}
    both = {"search/em": series, "critic/score/mean": series, "val-core/toy/acc/mean@1": series}
    assert [label for label, _ in curves(SCORE, both)] == ["rollouts, all kinds", "validation, toy"]
    assert [label for label, _ in curves(SCORE, {"critic/score/mean": series})] == ["rollouts, mean reward"]
    kinds = {"search/em": series, "search/em/single_hop": series}
    assert [label for label, _ in curves(SCORE, kinds)] == ["rollouts, all kinds", "rollouts, single hop"]
    assert not any(curves(panel, {"unknown": series}) for panel in PANELS)


def test_text_cannot_break_out() -> None:
    table = Table(["a", "b"], [["x|y", "*z*\n# h"]])
    assert table.markdown().splitlines()[-1] == r"| x\|y | \*z\* \# h |"
    example = Example("t", "```\n</pre><b>")
    assert example.markdown().count("````") == 2 and "</pre><b>" not in example.html()
    assert Text("<i>", warning=True).html() == '<p class="warning">&lt;i&gt;</p>'


def test_the_command_line(tmp_path: Path) -> None:
    after = make_run(tmp_path / "after", [1.0, 0.0])
    command = [sys.executable, str(REPOSITORY / "scripts/report.py"), "--out", str(tmp_path / "out"), "--after"]
    done = subprocess.run([*command, str(after), "--fact", "checkpoint=c"], capture_output=True, text=True, check=True)
    assert str(tmp_path / "out/report.html") in done.stdout and "single_hop" in done.stdout
    failed = subprocess.run([*command, str(tmp_path / "nowhere")], capture_output=True, text=True)
    assert failed.returncode == 1 and "nowhere" in failed.stderr and "Traceback" not in failed.stderr

"""The report of a training run: what evaluation said before and after it, how training went, and examples to read.

Two evaluations that differ in more than the model get a warning that names what differs: numbers under other
retrievers, prompts or budgets are not comparable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.evaluation import plots
from rag_r1.evaluation.comparison import Evaluation, by_sampling, comparable, comparison_table, comparison_warnings
from rag_r1.evaluation.document import Block, Figure, Heading, Table, Text, to_html, to_markdown
from rag_r1.evaluation.examples import example_blocks
from rag_r1.evaluation.summary import to_table
from rag_r1.evaluation.training_metrics import PANELS, SCORE, Series, curves, read_metrics


@dataclass(frozen=True, slots=True)
class Report:
    """What was written, and what is worth saying on the terminal."""

    markdown: Path
    html: Path
    tables: dict[str, Table]
    """Before against after, by sampling."""
    warnings: list[str]


def write_report(
    out_dir: str | os.PathLike[str],
    *,
    before: Sequence[str | os.PathLike[str]],
    after: Sequence[str | os.PathLike[str]],
    metrics: str | os.PathLike[str] | None = None,
    facts: Mapping[str, str] | None = None,
    title: str = "RAG-R1: training report",
) -> Report:
    """Write report.md, report.html and plots/ into `out_dir`.

    Args:
        before, after: evaluations (files or folders), any number of samplings each; `before` may be empty.
        metrics: training metrics (see `training_metrics`), or None.
        facts: further lines of the table of settings, e.g. the paths of checkpoint and trajectories.

    ValueError: two evaluations of one side with the same sampling, no `after`, or a malformed file.
    """
    out = Path(out_dir)
    earlier, later = by_sampling("before", before), by_sampling("after", after)
    if not later:
        raise ValueError("a report needs at least one evaluation after training")
    warnings = comparison_warnings(earlier, later)
    logged = {} if metrics is None else read_metrics(metrics)
    if metrics is not None and not curves(SCORE, logged):
        warnings.append(f"{metrics} holds no score over steps, so there is no curve of it")
    tables = {name: comparison_table(earlier.get(name), run) for name, run in later.items()}
    facts = {**({} if metrics is None else {"training metrics": str(metrics)}), **(facts or {})}

    (out / "plots").mkdir(parents=True, exist_ok=True)
    blocks: list[Block] = [Heading(title, 1), *(Text(warning, warning=True) for warning in warnings)]
    blocks += _comparison_blocks(out, tables, earlier, later)
    blocks += _training_blocks(out, logged)
    blocks += _full_tables(earlier, later)
    for name, run in later.items():
        blocks += example_blocks(name, earlier[name].records if name in earlier else [], run.records)
    blocks += _settings_blocks(earlier, later, facts)
    report = Report(out / "report.md", out / "report.html", tables, warnings)
    report.markdown.write_text(to_markdown(blocks), encoding="utf-8")
    report.html.write_text(to_html(title, blocks), encoding="utf-8")
    return report


def _comparison_blocks(
    out: Path, tables: Mapping[str, Table], earlier: Mapping[str, Evaluation], later: Mapping[str, Evaluation]
) -> list[Block]:
    bars = [(name, earlier[name].rows if name in earlier else [], run.rows) for name, run in later.items()]
    blocks: list[Block] = [Heading("Held-out questions")]
    for name, table in tables.items():
        blocks += [Heading(name, 3), table]
    return [
        *blocks,
        Text(
            "EM is exact match. Brackets hold the 95 % bootstrap interval over questions, paired by question. A round "
            "is a turn that searches. s/question runs from start to end of a question, others beside it."
        ),
        _figure(out, "em_by_kind.png", plots.em_by_kind(bars), "Exact match by question kind."),
    ]


def _training_blocks(out: Path, logged: dict[str, Series]) -> list[Block]:
    score, others = plots.score_over_steps(logged), plots.training_panels(PANELS, logged)
    blocks: list[Block] = [Heading("Training")] if score or others else []
    if score:
        blocks.append(_figure(out, "em_over_steps.png", score, "Exact match over PPO steps."))
    if others:
        blocks.append(_figure(out, "training.png", others, "What else training logged."))
    return blocks


def _figure(out: Path, name: str, png: bytes, caption: str) -> Figure:
    (out / "plots" / name).write_bytes(png)
    return Figure(png, f"plots/{name}", caption)


def _full_tables(earlier: Mapping[str, Evaluation], later: Mapping[str, Evaluation]) -> list[Block]:
    blocks: list[Block] = [Heading("Every figure")]
    for name, run in later.items():
        for side, evaluation in (("before", earlier.get(name)), ("after", run)):
            if evaluation:
                blocks += [Heading(f"{name}, {side}", 3), to_table(evaluation.rows)]
    return blocks


def _settings_blocks(
    earlier: Mapping[str, Evaluation], later: Mapping[str, Evaluation], facts: Mapping[str, str]
) -> list[Block]:
    lines = list(facts.items())
    for side, runs in (("before", earlier), ("after", later)):
        for name, run in runs.items():
            at_once = ", ".join(map(str, sorted({record["concurrency"] for record in run.records})))
            lines.append((f"{side}, {name}", str(run.path)))
            lines += _described({"model": run.settings.get("model", "not recorded")}, f"{side}, {name}: ")
            lines += _described(run.settings["sampling"], f"{side}, {name}: sampling.")
            lines.append((f"{side}, {name}: questions at once", at_once))
    shared = {name: v for name, v in comparable(next(iter(later.values()))).items() if name != "sampling"}
    return [Heading("Settings and files"), Table(["setting", "value"], lines + _described(shared), numbers=False)]


def _described(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in settings.items():
        lines += _described(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, str(value))]
    return lines

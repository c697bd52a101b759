"""Evaluations before and after training, matched by how they sampled and, within a pair, by question."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.evaluation.document import Table
from rag_r1.evaluation.intervals import paired_difference, question_means
from rag_r1.evaluation.results import Record, differences, read_records, read_settings
from rag_r1.evaluation.summary import TOTAL, SummaryRow, kind_of, summarise


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One results file, read."""

    path: Path
    records: list[Record]
    settings: dict[str, Any]
    rows: list[SummaryRow] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Evaluation:
        """`path` is a results file or the folder of `results.jsonl`. ValueError or OSError where it cannot be read."""
        file = Path(path) / "results.jsonl" if Path(path).is_dir() else Path(path)
        records = read_records(file)
        if not records:
            raise ValueError(f"{file} holds no results: run scripts/evaluate.py first")
        return cls(file, records, read_settings(file), summarise(records))

    @property
    def sampling(self) -> str:
        """How the evaluation sampled, as a label."""
        temperature = self.settings["sampling"]["temperature"]
        return "greedy" if temperature == 0 else f"sampled (temperature {temperature:g})"

    def question_em(self) -> dict[str, dict[str, float]]:
        """Mean EM of each question, by kind (and "all")."""
        scored = [record for record in self.records if not record["failed"]]
        groups = {kind: [r for r in scored if kind_of(r) == kind] for kind in dict.fromkeys(map(kind_of, scored))}
        groups[TOTAL] = scored
        return {kind: question_means(group, [r["metrics"]["em"] for r in group]) for kind, group in groups.items()}


def by_sampling(side: str, paths: Sequence[str | os.PathLike[str]]) -> dict[str, Evaluation]:
    """Evaluations by their sampling. ValueError where two of one side are alike."""
    found: dict[str, Evaluation] = {}
    for path in paths:
        new = Evaluation.read(path)
        if new.sampling in found:
            raise ValueError(f"{side}: {found[new.sampling].path} and {new.path} are both {new.sampling}")
        found[new.sampling] = new
    return found


def comparison_table(before: Evaluation | None, after: Evaluation) -> Table:
    """By kind: EM with its change (95 % interval, paired by question), rounds, queries and seconds a question."""
    both = before is not None
    header = ["kind", "n"]
    for name in ("EM", "rounds", "queries", "s/question"):
        header += [f"{name} before", "after"] if both else [name]
        header += ["change"] if both and name == "EM" else []
    earlier = {row.kind: row for row in before.rows} if before else {}
    return Table(header, [_line(row, earlier, before, after) for row in after.rows], total=True)


def _line(
    row: SummaryRow, earlier: Mapping[str, SummaryRow], before: Evaluation | None, after: Evaluation
) -> list[str]:
    line = [row.kind, str(len(after.question_em().get(row.kind, {})))]
    for name, digits in (("em", 3), ("rounds", 2), ("queries", 2), ("wall_s", 2)):
        if before:
            line.append(f"{getattr(earlier[row.kind], name):.{digits}f}" if row.kind in earlier else "-")
        line.append(f"{getattr(row, name):.{digits}f}")
        if before and name == "em":
            line.append(_change(before.question_em().get(row.kind, {}), after.question_em().get(row.kind, {})))
    return line


def _change(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    mean, low, high, count = paired_difference(before, after)
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]" if count else "-"


def comparison_warnings(earlier: Mapping[str, Evaluation], later: Mapping[str, Evaluation]) -> list[str]:
    """What stands in the way of comparing: settings that differ beside the model, other questions, failures, gaps."""
    warnings = []
    for name, run in later.items():
        if name not in earlier:
            if earlier:
                warnings.append(f"{name}: there is no evaluation before training to compare with")
            continue
        other = earlier[name]
        changed = differences(comparable(other), comparable(run))
        if changed:
            warnings.append(f"{name}: before and after are not comparable, they differ in {'; '.join(changed)}")
        if set(other.question_em()[TOTAL]) != set(run.question_em()[TOTAL]):
            warnings.append(f"{name}: before and after hold different questions; changes are over the shared ones")
    warnings += [f"{name}: there is no evaluation after training" for name in earlier if name not in later]
    for side, runs in (("before", earlier), ("after", later)):
        for name, run in runs.items():
            if run.rows[-1].failed:
                warnings.append(f"{side}, {name}: {run.rows[-1].failed} questions failed and are not in the figures")
    return warnings


def comparable(evaluation: Evaluation) -> dict[str, Any]:
    """What must be equal for two models' numbers to be compared: every setting but the model."""
    return {name: value for name, value in evaluation.settings.items() if name != "model"}

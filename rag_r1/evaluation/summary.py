"""The table of one evaluation: by question kind and in total.

Failed questions (engine or retriever) say nothing about the policy: they are counted in a column of their own and have
no part in any mean. Everything else counts, also a question without an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rag_r1.evaluation.document import Table
from rag_r1.evaluation.intervals import bootstrap_interval, question_means
from rag_r1.evaluation.results import Record

TOTAL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """Means over the scored samples of one kind; NaN where there are none."""

    kind: str
    n: int
    """Scored samples."""
    failed: int
    em: float
    em_low: float
    """Lower end of the 95 % bootstrap interval over questions."""
    em_high: float
    f1: float
    cover_em: float
    rounds: float
    """Executed searches a question."""
    queries: float
    wall_s: float
    """Seconds from start to end of a question while `concurrency` questions share the machine."""
    valid: float
    """Share of trajectories in which every turn is well-formed."""
    end_reasons: dict[str, int]
    """Of all samples, failed ones too."""


def kind_of(record: Record) -> str:
    """The question's kind, else its data set."""
    return str(record["kind"] or record["data_source"] or "other")


def summarise(records: Sequence[Record]) -> list[SummaryRow]:
    """One row a kind, in order of first appearance, then the total. (One kind only: the total alone.)"""
    kinds = list(dict.fromkeys(map(kind_of, records)))
    rows = [_row(kind, [r for r in records if kind_of(r) == kind]) for kind in kinds] if len(kinds) > 1 else []
    return [*rows, _row(TOTAL, records)]


def _row(kind: str, records: Sequence[Record]) -> SummaryRow:
    scored = [record for record in records if not record["failed"]]

    def mean(name: str) -> float:
        return sum(r["metrics"][name] for r in scored) / len(scored) if scored else float("nan")

    questions = question_means(scored, [record["metrics"]["em"] for record in scored])
    low, high = bootstrap_interval(list(questions.values()))
    return SummaryRow(
        kind=kind,
        n=len(scored),
        failed=len(records) - len(scored),
        em=mean("em"),
        em_low=low,
        em_high=high,
        f1=mean("f1"),
        cover_em=mean("cover_em"),
        rounds=mean("rounds"),
        queries=mean("queries"),
        wall_s=sum(r["wall_s"] for r in scored) / len(scored) if scored else float("nan"),
        valid=mean("format_valid"),
        end_reasons=dict(Counter(str(record["end_reason"]) for record in records).most_common()),
    )


HEADER = ["kind", "n", "EM", "95 %", "F1", "cover-EM", "rounds", "queries", "s/question", "valid", "ended by"]


def cells(row: SummaryRow) -> list[str]:
    """The texts of one table line, under `HEADER`."""
    return [
        row.kind,
        f"{row.n}" + (f" (+{row.failed} failed)" if row.failed else ""),
        f"{row.em:.3f}",
        f"{row.em_low:.3f}-{row.em_high:.3f}",
        f"{row.f1:.3f}",
        f"{row.cover_em:.3f}",
        f"{row.rounds:.2f}",
        f"{row.queries:.2f}",
        f"{row.wall_s:.2f}",
        f"{row.valid:.3f}",
        ", ".join(f"{reason} {count}" for reason, count in row.end_reasons.items()),
    ]


def to_table(rows: Sequence[SummaryRow]) -> Table:
    """For Markdown, HTML and the terminal."""
    return Table(HEADER, [cells(row) for row in rows], total=True)

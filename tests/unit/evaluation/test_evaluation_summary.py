"""The table of one run, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from evaluation_fakes import make_record
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.evaluation import summarise
from rag_r1.evaluation.intervals import bootstrap_interval, paired_difference
from rag_r1.evaluation.summary import to_table
from rag_r1.rewards import score

RECORDS = [
    make_record("a", 1.0, kind="single_hop", rounds=1),
    make_record("b", 0.0, kind="bridge", rounds=3, end_reason="turn_limit"),
    make_record("c", 1.0, kind="bridge", rounds=2),
    make_record("d", 0.0, kind="bridge", failed=True, rounds=9),
]


def test_rows_by_kind_and_in_total() -> None:
    single, bridge, total = summarise(RECORDS)
    assert (single.kind, bridge.kind, total.kind) == ("single_hop", "bridge", "all")
    assert (bridge.n, bridge.failed, bridge.em, bridge.rounds, bridge.queries) == (2, 1, 0.5, 2.5, 5.0)
    assert (total.n, total.em, total.rounds, total.wall_s) == (3, 2 / 3, 2.0, 2.0)
    assert total.end_reasons == {"answer": 2, "turn_limit": 1, "engine_failed": 1}
    assert (single.em_low, single.em_high) == (1.0, 1.0)


def test_the_tables_hold_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    rows = summarise(RECORDS)
    markdown = to_table(rows).markdown()
    assert "| bridge | 2 (+1 failed) | 0.500 |" in markdown
    assert "answer 2, turn\\_limit 1, engine\\_failed 1" in markdown
    to_table(rows).show("title")
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("single_hop", "0.667", "2.00", "turn_limit 1"))


def test_a_kind_whose_every_question_failed_has_no_figures() -> None:
    rows = summarise([make_record("a", 1.0), make_record("b", 0.0, kind="x", failed=True)])
    assert rows[1].n == 0 and math.isnan(rows[1].em) and rows[2].em == 1.0


def test_without_kinds_there_is_the_total_alone_or_the_data_sets() -> None:
    assert [row.kind for row in summarise([make_record("a", 1.0, kind="")])] == ["all"]
    two = [make_record("a", 1.0, kind="", data_source="nq"), make_record("b", 1.0, kind="", data_source="popqa")]
    assert [row.kind for row in summarise(two)] == ["nq", "popqa", "all"]


def test_more_samples_of_the_same_questions_do_not_narrow_the_interval() -> None:
    one = [make_record(f"q{i}", float(i % 2)) for i in range(40)]
    ten = [make_record(f"q{i}", float(i % 2), sample=s) for i in range(40) for s in range(10)]
    assert summarise(one)[-1].em_low == summarise(ten)[-1].em_low
    assert summarise(ten)[-1].n == 400


def test_interval_has_the_width_of_the_binomial() -> None:
    low, high = bootstrap_interval([1.0] * 120 + [0.0] * 80)
    expected = 1.96 * math.sqrt(0.6 * 0.4 / 200)
    assert abs((high - low) / 2 - expected) < 0.1 * expected and low < 0.6 < high


def test_paired_difference_is_over_shared_questions() -> None:
    mean, low, high, count = paired_difference({"a": 0.0, "b": 1.0, "x": 1.0}, {"a": 1.0, "b": 1.0, "y": 0.0})
    assert (mean, count) == (0.5, 2) and low <= 0.5 <= high
    assert paired_difference({"a": 1.0}, {"b": 1.0})[3] == 0


words = st.lists(st.sampled_from(["the", "Ada", "lovelace", "1815", "Ada,", "-", "é"]), max_size=4).map(" ".join)


@given(answer=st.none() | words | st.text(max_size=12), golden=st.lists(words | st.text(max_size=12), max_size=3))
def test_exact_match_is_never_above_f1_or_cover_em(answer: str | None, golden: list[str]) -> None:
    scores = score(answer, golden)
    assert scores["em"] <= scores["f1"] + 1e-12
    assert scores["em"] <= scores["cover_em"]

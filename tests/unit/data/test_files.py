"""Reading questions, the training parquet, its checks and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.data import (
    DataError,
    QuestionRow,
    check_parquet,
    describe,
    name_and_split,
    read_questions,
    without_questions_of,
    write_parquet,
)

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"real data is not at {DATA}")

text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
metadata = st.dictionaries(text, st.one_of(st.none(), st.integers(-(2**53), 2**53), text, st.lists(text)), max_size=3)
rows_of_any_kind = st.builds(
    QuestionRow, text, text, st.lists(text, min_size=1, max_size=3), text, kind=st.text("ab"), metadata=metadata
)


def row(**changes: Any) -> QuestionRow:
    fields = {"id": "q0", "question": "Who?", "golden_answers": ["Ada"], "data_source": "toy", **changes}
    return QuestionRow(**fields)


def foreign(**changes: Any) -> dict[str, Any]:
    """A row as other projects write it: verl's schema without the columns of ours."""
    return {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Who?"}],
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada"]}},
        "extra_info": {"index": 0, "split": "train"},
        **changes,
    }


def write_foreign(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


# -- parquet ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(rows_of_any_kind, min_size=1, max_size=4))
def test_rows_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: list[QuestionRow]) -> None:
    path = tmp_path_factory.mktemp("data") / "train.parquet"
    write_parquet(rows, path)
    assert read_questions(path) == rows
    assert check_parquet(path) == len(rows)


def test_the_schema_of_the_trainer(tmp_path: Path) -> None:
    path = tmp_path / "new" / "train.parquet"
    write_parquet([row(kind="bridge", metadata={"level": "hard"})], path)
    assert pq.read_table(path).to_pylist() == [
        {
            "id": "q0",
            "question": "Who?",
            "golden_answers": ["Ada"],
            "data_source": "toy",
            "kind": "bridge",
            "prompt": [{"role": "user", "content": "Who?"}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada"]}},
            "extra_info": {"index": 0, "split": "train", "id": "q0"},
            "metadata": '{"level":"hard"}',
            "agent_name": "rag_r1",
        }
    ]
    assert [file.name for file in path.parent.iterdir()] == ["train.parquet"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data_source": ""}, "data_source=''"),  # case 21
        ({"question": " "}, "question=' '"),
        ({"golden_answers": []}, r"golden_answers=\[\]"),
        ({"golden_answers": [""]}, r"golden_answers=\[''\]"),
        ({"id": ""}, "id=''"),
    ],
)
def test_case_21_a_bad_row_is_not_written_and_named(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    path = tmp_path / "train.parquet"
    with pytest.raises(DataError, match=rf"train\.parquet: row 1: {key}"):
        write_parquet([row(), row(**changes)], path)
    assert not path.exists()


def test_nothing_to_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing to write"):
        write_parquet([], tmp_path / "train.parquet")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data_source": ""}, "data_source=''"),  # case 21: before the first rollout
        ({"data_source": None}, "data_source=None"),
        ({"prompt": []}, r"prompt=\[\]"),
        ({"prompt": [{"role": "user", "content": " "}]}, r"prompt\[-1\]\.content=' '"),
        ({"reward_model": {"style": "rule", "ground_truth": {"target": []}}}, "reward_model.ground_truth.target"),
        ({"reward_model": None}, "reward_model.ground_truth.target=None"),
    ],
)
def test_case_21_check_names_file_row_key_and_value(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    path = write_foreign(tmp_path / "t.parquet", foreign(), foreign(**changes))
    with pytest.raises(DataError, match=rf"t\.parquet: row 1: {key}"):
        check_parquet(path)


@pytest.mark.parametrize("column", ["data_source", "prompt", "reward_model"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    record = foreign()
    del record[column]
    with pytest.raises(DataError, match=f"{column}=None: column is missing"):
        check_parquet(write_foreign(tmp_path / "t.parquet", record))


def test_not_parquet_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("question,answer")
    with pytest.raises(DataError, match="not a parquet file"):
        check_parquet(path)
    pq.write_table(pa.Table.from_pylist([foreign()]).slice(0, 0), path)
    with pytest.raises(DataError, match="no rows"):
        check_parquet(path)


def test_case_140_null_extra_info_loads_with_defaults(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "t.parquet", foreign(id="a"), foreign(id="b", extra_info=None))
    assert check_parquet(path) == 2
    assert [row.metadata for row in read_questions(path)] == [{}, {}]
    assert [row.golden_answers for row in read_questions(path)] == [["Ada"], ["Ada"]]
    assert [row.question for row in read_questions(path)] == ["Who?", "Who?"]


def test_case_140_null_extra_info_without_an_id(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "t.parquet", foreign(extra_info={"id": "a"}), foreign(extra_info=None))
    assert [row.id for row in read_questions(path)] == ["a", "t:1"]


# -- JSON ------------------------------------------------------------------------------------------------------------


def test_rag_r1_json_has_strings_and_no_ids(tmp_path: Path) -> None:
    path = tmp_path / "hotpotqa_train_filter_mq" / "train_data.json"
    path.parent.mkdir()
    path.write_text(json.dumps([{"question": "Who?", "golden_answers": "Ada, Countess"}]))
    (only,) = read_questions(path)
    assert only == QuestionRow(
        "hotpotqa_train_filter_mq:train:0", "Who?", ["Ada, Countess"], "hotpotqa_train_filter_mq"
    )
    assert read_questions(path, data_source="mine")[0].data_source == "mine"


def test_flashrag_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "bamboogle.jsonl"
    record = {"id": "test_0", "question": "東京?", "golden_answers": ["a", "b"], "metadata": {"type": "bridge"}}
    path.write_text(json.dumps(record) + "\n\n" + json.dumps({**record, "id": "test_1", "metadata": None}) + "\n")
    one, two = read_questions(path)
    assert one == QuestionRow("test_0", "東京?", ["a", "b"], "bamboogle", "bridge", {"type": "bridge"})
    assert (two.id, two.kind, two.metadata) == ("test_1", "", {})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "Who?"}', "row 1: golden_answers=None: key is missing; there are question"),
        ('{"golden_answers": ["a"]}', "row 1: question=None"),
        ('{"question": "", "golden_answers": ["a"]}', "row 1: question=''"),
        ('{"question": "Who?", "golden_answers": 7}', "row 1: golden_answers=7: golden answers must be"),
        ('{"question": "Who?", "golden_answers": []}', r"row 1: golden_answers=\[\]: at least one"),
        ('{"question": "Who?", "golden_answers": "a", "data_source": ""}', "row 1: data_source=''"),  # case 21
        ("[1]", r"row 1: row=\[1\]"),
        ("{broken", "row 1: json=.*not valid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "Who?", "golden_answers": ["a"]}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"q\.jsonl: {message}"):
        read_questions(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("question")
    with pytest.raises(DataError, match=r"suffix='\.csv'"):
        read_questions(path)
    (tmp_path / "q.json").write_text("{}")
    with pytest.raises(DataError, match="JSON list"):
        read_questions(tmp_path / "q.json")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("RL/hotpotqa_train_filter/train_data.json", ("hotpotqa_train_filter", "train")),
        ("hotpotqa_train_filter_mq_test.json", ("hotpotqa_train_filter_mq", "test")),
        ("nq/dev.jsonl", ("nq", "dev")),
        ("eval/bamboogle.jsonl", ("bamboogle", "")),
        ("contest.jsonl", ("contest", "")),
    ],
)
def test_names_follow_the_path(path: str, named: tuple[str, str]) -> None:
    assert name_and_split(path) == named


# -- cards, overlap, command line ------------------------------------------------------------------------------------


def test_case_145_the_card_identifies_the_data() -> None:
    rows = [row(), row(id="q1", question="WHO? "), row(id="q2", question="Where?")]
    card = describe(rows, "train")
    assert (card.sources, card.split, card.rows, card.duplicates) == (("toy",), "train", 3, 1)
    assert describe(rows).digest == card.digest
    assert describe([row(golden_answers=["Bob"]), *rows[1:]]).digest != card.digest
    assert card.digest in str(card)


def test_questions_of_another_file_are_left_out() -> None:
    rows = [row(), row(id="q1", question="Where?")]
    assert without_questions_of(rows, [row(question=" who? ")]) == rows[1:]


def make_rl_data(*arguments: object) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "data_process" / "make_rl_data.py"
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )


def test_command_line(tmp_path: Path) -> None:
    (tmp_path / "toy_train.json").write_text('[{"question": "Who?", "golden_answers": "Ada"}]')
    done = make_rl_data(tmp_path / "toy_train.json", tmp_path / "out.parquet")
    assert done.returncode == 0, done.stderr
    assert "toy [train]: 1 rows, 0 repeated questions" in done.stdout
    assert check_parquet(tmp_path / "out.parquet") == 1


def test_command_line_says_what_is_wrong(tmp_path: Path) -> None:
    done = make_rl_data(tmp_path / "missing.json", tmp_path / "out.parquet")
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "missing.json" in done.stderr
    assert "Traceback" not in done.stderr


@needs_data
@pytest.mark.parametrize(
    ("name", "rows", "duplicates"),
    [
        ("hotpotqa_train_filter_train.json", 4770, 226),
        ("hotpotqa_train_filter_test.json", 252, 0),
        ("hotpotqa_train_filter_mq_train.json", 6664, 2),
        ("hotpotqa_train_filter_mq_test.json", 351, 0),
    ],
)
def test_the_published_rl_files(tmp_path: Path, name: str, rows: int, duplicates: int) -> None:
    questions = read_questions(DATA / "rag_r1_rl" / name)
    card = describe(questions)
    assert (card.rows, card.duplicates) == (rows, duplicates)
    write_parquet(questions, tmp_path / "out.parquet")
    assert check_parquet(tmp_path / "out.parquet") == rows


@needs_data
def test_validation_questions_leave_the_published_training_file() -> None:
    train, test = (
        read_questions(DATA / "rag_r1_rl" / f"hotpotqa_train_filter_mq_{split}.json") for split in ("train", "test")
    )
    assert len(train) - len(without_questions_of(train, test)) == 123


@needs_data
@pytest.mark.parametrize(("name", "rows"), [("hotpotqa", 250), ("2wikimultihopqa", 250), ("bamboogle", 125)])
def test_the_benchmark_files(name: str, rows: int) -> None:
    questions = read_questions(DATA / "eval" / f"{name}.jsonl")
    assert len(questions) == rows
    assert questions[0].id == f"{name}_0" and questions[0].data_source == name

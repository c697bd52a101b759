"""Pages into passages: markers, words, titles, schemas, and the store that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.retrieval.corpus import clean_paragraph, passages_of, split_page
from rag_r1.retrieval.corpus_build import split_corpus
from rag_r1.retrieval.passages import OFFSETS_FILE, PassageStore, PassageWriter

WORDS = st.lists(
    st.text(st.characters(exclude_characters=":", exclude_categories=["Cs", "Z", "Cc"]), min_size=1), max_size=9
)
PARAGRAPHS = st.lists(st.tuples(st.sampled_from(["", "Section::::", "BULLET::::", "BULLET::::- "]), WORDS), max_size=8)


def test_case_133_markers_go_and_words_stay() -> None:
    text = ["Ada\n", "Ada was…\n", "Section::::Early life and career.\n", "BULLET::::- Wrote notes\n"]
    assert split_page("Ada", text) == ["Ada   Ada was… Early life and career. - Wrote notes"]


def test_heading_paths_become_words() -> None:
    assert clean_paragraph("Section::::Republican politics.:Emergence as leader.\n") == (
        "Republican politics. Emergence as leader."
    )
    assert clean_paragraph("Section::::Crew of Apollo 1:00.\n") == "Crew of Apollo 1:00."


def test_paragraphs_without_line_breaks_are_not_glued() -> None:
    assert split_page("T", ["one", "two", "threeBULLET::::- four"]) == ["T   one two three - four"]


@given(PARAGRAPHS, st.integers(1, 7))
def test_no_word_is_joined_lost_or_made(paragraphs: list[tuple[str, list[str]]], size: int) -> None:
    text = [f"{marker}{' '.join(words)}\n" for marker, words in paragraphs]
    expected = [w for marker, words in paragraphs for w in [*marker.removeprefix("BULLET::::").split(), *words]]
    expected = [word for word in expected if word != "Section::::"]
    passages = split_page("The title", text, words_per_passage=size)
    bodies = [passage.removeprefix("The title   ").split(" ") for passage in passages]
    assert [word for body in bodies for word in body] == expected
    assert all(len(body) == size for body in bodies[:-1])
    assert not any("::::" in passage for passage in passages)


@given(st.text(st.sampled_from(list("Section:BULET \n-a"))))
def test_no_marker_survives_whatever_the_text(text: str) -> None:
    assert not any("::::" in passage for passage in split_page("T", [text, "Section::::" + text, "BULLET::::" + text]))


def test_title_is_not_doubled_unless_asked() -> None:
    text = ["Ada Lovelace\n", "Ada Lovelace was a countess.\n"]
    assert split_page("Ada Lovelace", text) == ["Ada Lovelace   Ada Lovelace was a countess."]
    assert split_page("Ada Lovelace", text, repeat_title=True) == [
        "Ada Lovelace   Ada Lovelace Ada Lovelace was a countess."
    ]


def test_titles_keep_rows_whole() -> None:
    assert split_page("A\tB\nC", ["x\u2028y\rz"]) == ["A B C   x y z"]


def test_a_short_page_is_one_passage_and_a_long_one_has_100_words_each() -> None:
    assert len(split_page("T", [" ".join(["w"] * 15)])) == 1
    assert [len(p.split()) - 1 for p in split_page("T", [" ".join(["w"] * 250)])] == [100, 100, 50]


def test_empty_pages_are_counted(pages: list[dict[str, Any]], to_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    progress: list[int] = []
    source = to_jsonl([*pages, {"wikipedia_title": "Only a title", "text": ["Only a title\n"]}])
    report = split_corpus(source, tmp_path / "out", on_progress=progress.append)
    assert (report.pages, report.empty_pages, report.corpus.rows) == (7, 2, 5)
    assert sum(progress) == source.stat().st_size


def test_case_135_all_schemas_load_and_an_unknown_one_names_its_keys() -> None:
    expected = ["Ada   Ada was a countess."]
    assert passages_of({"id": "7", "contents": '"Ada"\nAda was\na countess.'}) == expected
    assert passages_of({"id": "7", "title": "Ada", "text": "Ada was a countess."}) == expected
    assert passages_of({"wikipedia_title": "Ada", "text": ["Ada\n", "Ada was a countess.\n"]}) == expected
    with pytest.raises(ValueError, match="body, id"):
        passages_of({"id": "7", "body": "x"})
    with pytest.raises(ValueError, match='"text"'):
        passages_of({"wikipedia_title": "Ada", "text": "not a list"})


def test_a_ready_passage_is_never_cut_or_dropped() -> None:
    assert len(passages_of({"title": "T", "text": " ".join(["w"] * 250)})) == 1
    assert passages_of({"title": "T", "text": ""}) == ["T"]


def test_a_bad_line_is_named(to_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    source = to_jsonl([{"wikipedia_title": "T", "text": ["x"]}, {"title": "T"}])
    with pytest.raises(ValueError, match=r'source\.jsonl, line 2: key "text"'):
        split_corpus(source, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir()), "a build that fails leaves nothing behind"


def test_tsv_is_copied_word_for_word_and_checked(tmp_path: Path) -> None:
    source = tmp_path / "own.tsv"
    source.write_text("0\tA   b\tc  d\n1\tB   Dvořák 東京\n", encoding="utf-8")
    split_corpus(source, tmp_path / "out")
    assert (tmp_path / "out" / "passages.tsv").read_bytes() == source.read_bytes()
    assert PassageStore(tmp_path / "out").get([1, 0]) == ["B   Dvořák 東京", "A   b\tc  d"]
    source.write_text("0\tA\n2\tB\n")
    with pytest.raises(ValueError, match=r"own\.tsv, line 2: id '2' in row 1"):
        split_corpus(source, tmp_path / "out")


def test_writer_is_all_or_nothing_and_offsets_hold_past_one_buffer(tmp_path: Path) -> None:
    rows = 70_000
    with PassageWriter(tmp_path) as writer:
        for row in range(rows):
            writer.write(f"T   é{row}")
    offsets = np.load(tmp_path / OFFSETS_FILE)
    assert offsets.shape == (rows + 1,) and offsets.dtype == np.int64
    store = PassageStore(tmp_path)
    assert len(store) == rows and store.get([rows - 1, 65_536, 0]) == [f"T   é{rows - 1}", "T   é65536", "T   é0"]
    assert store.info() == writer.info
    before = (tmp_path / "passages.tsv").read_bytes()
    with pytest.raises(ValueError, match="line break"), PassageWriter(tmp_path) as again:
        again.write("a\nb")
    assert (tmp_path / "passages.tsv").read_bytes() == before and not list(tmp_path.glob("*.partial"))


def test_store_refuses_ids_outside_and_torn_files(tmp_path: Path) -> None:
    with PassageWriter(tmp_path) as writer:
        writer.write("A   a")
        writer.write("B   b")
    store = PassageStore(tmp_path)
    for bad in (-1, 2):
        with pytest.raises(IndexError, match=f"passage {bad} "):
            store.get([bad])
    (tmp_path / "passages.tsv").write_bytes((tmp_path / "passages.tsv").read_bytes()[:-3])
    with pytest.raises(ValueError, match="torn"):
        PassageStore(tmp_path)


def test_kilt_pages_sample(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "kilt_pages_sample.jsonl"
    report = split_corpus(source, tmp_path)
    passages = list(PassageStore(tmp_path))
    assert report.pages == 99 and report.empty_pages == 0 and report.corpus.rows == len(passages)
    assert not any("::::" in passage for passage in passages)
    pages = [json.loads(line) for line in source.open(encoding="utf-8")]
    assert passages[0].startswith("A   A (named , plural")  # the title once, then its first sentence
    text = " ".join(passages)
    headings = [p for page in pages for p in page["text"] if p.startswith("Section::::")]
    assert len(headings) > 1000 and "Presidency. Judicial appointments." in text


def test_kilt_slice(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "kilt_slice.tsv"
    report = split_corpus(source, tmp_path)
    assert report.corpus.rows == 11_103
    assert (tmp_path / "passages.tsv").read_bytes() == source.read_bytes()
    store = PassageStore(tmp_path)
    assert store.get([11_102, 1])[1].startswith("Blushing Charlie   ")

"""Pages in, passages of 100 words out: the rules. ``corpus_build`` runs them over a whole source.

A passage is "title   text": the title, three spaces, and the next 100 whitespace-separated words of the page
(arXiv 2507.02962, appendix A: KILT's Wikipedia of August 2019, 100-word passages with the title in front).

Rules, the same for every page:
- KILT's markers ``Section::::`` and ``BULLET::::`` never survive; what they mark does. A heading stays in the text as a
  sentence of its own ("Section::::Career.:Early work." -> "Career. Early work."), a bullet keeps its dash or number.
- Paragraphs are joined by a space and markers become a space, so words are never joined; no word is lost.
- KILT repeats the title as the first paragraph. It is dropped, because every passage starts with the title;
  ``repeat_title=True`` keeps it, as the original's ``split_kilt_to_100.py`` does.
- A page without words gives no passage and is counted.

What is already cut into passages is not cut again, and its row numbers stay: FlashRAG and Search-R1 JSON lines
(``contents`` of the form '"title"\\ntext', or ``title`` and ``text``), and TSV rows ``id<TAB>title   text``, which are
copied word for word.
"""

from __future__ import annotations

import json
import re
from typing import Any

WORDS_PER_PASSAGE = 100
SEPARATOR = "   "  # between title and text

_MARKER = re.compile(r"(?:Section|BULLET)?:{4,}")
_HEADING_PATH = re.compile(r"(?<=\.):(?=\S)")  # KILT writes the path of a heading as "Career.:Early work."


def clean_paragraph(paragraph: str) -> str:
    """One paragraph without markers, its whitespace collapsed.

    >>> clean_paragraph("Section::::Career.:Early work.\\n")
    'Career. Early work.'
    >>> clean_paragraph("BULLET::::- Wrote notes\\n")
    '- Wrote notes'
    """
    if paragraph.startswith("Section::::"):
        paragraph = _HEADING_PATH.sub(" ", paragraph.removeprefix("Section::::"))
    return " ".join(_MARKER.sub(" ", paragraph).split())


def split_page(
    title: str, paragraphs: list[str], *, words_per_passage: int = WORDS_PER_PASSAGE, repeat_title: bool = False
) -> list[str]:
    """The passages of one page, each "title   text"; none for a page without words."""
    title = clean_paragraph(title)
    cleaned = [clean_paragraph(paragraph) for paragraph in paragraphs]
    if cleaned and cleaned[0] == title and not repeat_title:
        cleaned = cleaned[1:]
    words = " ".join(cleaned).split()
    starts = range(0, len(words), words_per_passage)
    return [_passage(title, " ".join(words[start : start + words_per_passage])) for start in starts]


def passages_of(
    record: dict[str, Any], *, words_per_passage: int = WORDS_PER_PASSAGE, repeat_title: bool = False
) -> list[str]:
    """The passages of one JSON record: many of a KILT page, one of a ready-made passage.

    Raises ``ValueError`` that names the key which is missing or of the wrong type.
    """
    if "wikipedia_title" in record:
        title, text = _string(record, "wikipedia_title"), record.get("text")
        if not isinstance(text, list) or not all(isinstance(paragraph, str) for paragraph in text):
            raise ValueError('key "text" of a KILT page must be a list of strings')
        return split_page(title, text, words_per_passage=words_per_passage, repeat_title=repeat_title)
    if "contents" in record:
        title, _, text = _string(record, "contents").partition("\n")
        title = title.strip().strip('"')
    elif "title" in record:
        title, text = _string(record, "title"), _string(record, "text")
    else:
        keys = ", ".join(sorted(record)) or "none"
        raise ValueError(
            f'neither "wikipedia_title" (with "text"), "contents" nor "title" is there; the keys are: {keys}'
        )
    passage = _passage(clean_paragraph(title), clean_paragraph(text))
    if not passage:
        raise ValueError("title and text are both blank")
    return [passage]


def passages_of_line(
    line: bytes, row: int, *, tsv: bool, words_per_passage: int = WORDS_PER_PASSAGE, repeat_title: bool = False
) -> list[str]:
    """The passages of one line of a source: a row of TSV, whose id must be ``row`` (0-based), or a JSON record."""
    if tsv:
        return [_tsv_contents(row, line)]
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("a JSON object is expected")
    return passages_of(record, words_per_passage=words_per_passage, repeat_title=repeat_title)


def _passage(title: str, text: str) -> str:
    return f"{title}{SEPARATOR}{text}".strip()


def _string(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(f'key "{key}" must be a string, got {value!r:.60}')
    return value


def _tsv_contents(row: int, line: bytes) -> str:
    head, tab, contents = line.decode().rstrip("\r\n").partition("\t")
    if not tab:
        raise ValueError("no tab: a row is id<TAB>title   text")
    if head != str(row):
        raise ValueError(f"id {head[:20]!r} in row {row}: ids must equal row numbers, from 0, without a header")
    return contents

"""First stage of a build: a source of pages -> ``passages.tsv``, its offsets, and the card ``corpus.json``.

Invariants:
- Passages and ids depend on the source and the settings, never on the number of workers.
- Memory is a few pieces of the source (1 MiB each), whatever its size.
- Every 64 pieces the output is brought to the disk and the position is noted. The same command after a kill or a full disk
  goes on from there and gives the same bytes; after a finished build of the same source it does nothing.
- A source that has changed (name, size or time) starts anew, and drops what was built from the old one.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, BinaryIO

from rag_r1.retrieval.corpus import WORDS_PER_PASSAGE, passages_of_line
from rag_r1.retrieval.files import check_room, read_json, write_json
from rag_r1.retrieval.manifest import MANIFEST_FILE
from rag_r1.retrieval.passages import OFFSETS_FILE, PASSAGES_FILE, CorpusInfo, PassageWriter

CARD_FILE = "corpus.json"
_JOB_FILE = "corpus.job.json"
_PIECE_BYTES = 1 << 20
_PIECES_PER_CHECKPOINT = 64


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What a source held: records read, pages without words, and the corpus that came out."""

    pages: int
    empty_pages: int
    corpus: CorpusInfo


@dataclass(frozen=True, slots=True)
class _Piece:
    """Whole lines of the source; ``line`` is the 0-based number of the first."""

    data: bytes
    line: int


@dataclass(slots=True)
class _Progress:
    """How far a build has come: all of the source before ``position`` is in the first ``bytes`` of the corpus."""

    position: int = 0
    lines: int = 0
    pages: int = 0
    empty_pages: int = 0
    rows: int = 0
    bytes: int = 0


def split_corpus(
    source: str | Path,
    directory: str | Path,
    *,
    words_per_passage: int = WORDS_PER_PASSAGE,
    repeat_title: bool = False,
    workers: int = 1,
    on_progress: Callable[[int], object] | None = None,
) -> SplitReport:
    """Write the passages of ``source`` (``.tsv``: rows of ready passages, else JSON lines) into ``directory``.

    Args:
        workers: processes that parse; 1 is this process itself.
        on_progress: gets the bytes of the source read since the last call.

    Raises:
        ValueError: a record of unknown form (file and line are named), or a source without a single passage.
        OSError: no such file, or no room for the corpus.
    """
    if words_per_passage < 1 or workers < 1:
        raise ValueError(f"words_per_passage and workers must be at least 1, got {words_per_passage} and {workers}")
    source, directory = Path(source), Path(directory)
    if not source.is_file():
        raise FileNotFoundError(f"{source} is not a file")
    advance = on_progress or (lambda _: None)
    rules = {"words_per_passage": words_per_passage, "repeat_title": repeat_title}
    job = {"source": _identity(source), **rules}
    if report := _finished(directory, job):
        advance(source.stat().st_size)
        return report

    directory.mkdir(parents=True, exist_ok=True)
    writer, progress = _start_or_resume(directory, job)
    # titles in front of passages add less than a tenth to KILT's pages, JSON's quotes and escapes take more away
    check_room(directory, int(1.1 * (source.stat().st_size - progress.position)), f"splitting {source}")
    for name in (MANIFEST_FILE, CARD_FILE):  # of what was built from another corpus
        (directory / name).unlink(missing_ok=True)
    advance(progress.position)
    with ExitStack() as stack:
        file = stack.enter_context(source.open("rb"))
        file.seek(progress.position)
        stack.enter_context(writer)
        pieces = _pieces(file, progress.lines)
        results = _parse(pieces, source, rules, workers, stack)
        for number, (piece, passages_by_page) in enumerate(results, start=1):
            for passages in passages_by_page:
                progress.empty_pages += not passages
                for passage in passages:
                    writer.write(passage)
            progress.pages += len(passages_by_page)
            progress.position += len(piece.data)
            progress.lines = piece.line + piece.data.count(b"\n")
            if number % _PIECES_PER_CHECKPOINT == 0:
                progress.rows, progress.bytes = writer.checkpoint()
                write_json(directory / _JOB_FILE, {"job": job, "progress": asdict(progress)})
            advance(len(piece.data))
        if progress.pages == progress.empty_pages:
            raise ValueError(f"{source} gives no passage ({progress.pages} pages, all empty)")
    report = SplitReport(progress.pages, progress.empty_pages, writer.info)
    write_json(directory / CARD_FILE, {"job": job, **asdict(report)})
    (directory / _JOB_FILE).unlink(missing_ok=True)
    return report


def _identity(source: Path) -> dict[str, Any]:
    stat = source.stat()
    return {"name": source.name, "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}


def _finished(directory: Path, job: dict[str, Any]) -> SplitReport | None:
    card = read_json(directory / CARD_FILE)
    passages = directory / PASSAGES_FILE
    if not card or card["job"] != job or not passages.is_file() or not (directory / OFFSETS_FILE).is_file():
        return None
    corpus = CorpusInfo(**card["corpus"])
    same = passages.stat().st_size == corpus.bytes
    return SplitReport(card["pages"], card["empty_pages"], corpus) if same else None


def _start_or_resume(directory: Path, job: dict[str, Any]) -> tuple[PassageWriter, _Progress]:
    noted = read_json(directory / _JOB_FILE)
    if noted and noted["job"] == job:
        progress = _Progress(**noted["progress"])
        try:
            return PassageWriter(directory).resume(progress.rows, progress.bytes), progress
        except ValueError:  # killed between the rename and the card: nothing to go on from
            pass
    (directory / _JOB_FILE).unlink(missing_ok=True)
    return PassageWriter(directory), _Progress()


def _pieces(file: BinaryIO, line: int) -> Iterator[_Piece]:
    """The rest of the file in pieces of about 1 MiB that end with a line."""
    while data := file.read(_PIECE_BYTES):
        data += file.readline()
        yield _Piece(data, line)
        line += data.count(b"\n")


def _parse(
    pieces: Iterator[_Piece], source: Path, rules: dict[str, Any], workers: int, stack: ExitStack
) -> Iterator[tuple[_Piece, list[list[str]]]]:
    """Each piece with its passages, in the order of the source."""
    if workers == 1:
        for piece in pieces:
            yield piece, _parse_piece(piece, source, rules)
        return
    # spawn: the caller may hold threads and locks (torch, a progress bar) that a fork would copy
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    stack.callback(pool.shutdown, cancel_futures=True)
    ahead: deque[tuple[_Piece, Future[list[list[str]]]]] = deque()
    for piece in pieces:
        ahead.append((piece, pool.submit(_parse_piece, piece, source, rules)))
        if len(ahead) > 2 * workers:
            first, future = ahead.popleft()
            yield first, future.result()
    for first, future in ahead:
        yield first, future.result()


def _end_with_parent() -> None:
    """Let this worker end when the build is killed; the pool's own workers would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _parse_piece(piece: _Piece, source: Path, rules: dict[str, Any]) -> list[list[str]]:
    """The passages of each record; blank lines are skipped. Raises ``ValueError`` that names file and line."""
    found = []
    for row, line in enumerate(piece.data.splitlines(keepends=True) if b"\r" not in piece.data else _lines(piece.data)):
        if not line.strip():
            continue
        try:
            found.append(passages_of_line(line, piece.line + row, tsv=source.suffix == ".tsv", **rules))
        except ValueError as error:
            raise ValueError(f"{source}, line {piece.line + row + 1}: {error}") from error
    return found


def _lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.split(b"\n")]

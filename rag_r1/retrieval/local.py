"""Retrieval in this process: encoder, index and passages behind one object. What a server serves, and what tests use.

Invariants:
- Nothing is served that does not fit: corpus, index and encoder are checked against the manifest as they are opened,
  and the encoder embeds passage 0 again, which must give the stored vector.
- One search at a time: FAISS indexes on GPUs and tokenizers are not safe under several threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np

from rag_r1.retrieval.encoder import Encoder, SentenceEncoder
from rag_r1.retrieval.index import ShardedIndex
from rag_r1.retrieval.manifest import Manifest, ManifestError, check_corpus, check_encoder
from rag_r1.retrieval.passages import CorpusInfo, PassageStore
from rag_r1.retrieval.types import Passage

_SAME_MODEL = 0.98  # cosine of one text under fp32 and fp16 is above 0.999, under another model near 0


class LocalRetriever:
    """``find`` blocks, ``search`` does the same for asyncio. ``open`` loads an index directory and checks it."""

    def __init__(
        self, store: PassageStore, index: ShardedIndex, encoder: Encoder, *, index_id: str = "unnamed"
    ) -> None:
        if len(store) != index.rows:
            raise ManifestError(
                f"{store.path} has {len(store)} rows and the index {index.rows}: they do not belong together"
            )
        if encoder.spec.dim != index.dim:
            raise ManifestError(
                f"encoder {encoder.spec.name!r} has dim = {encoder.spec.dim}, the index has {index.dim}"
            )
        self.index_id = index_id
        self._store = store
        self._index = index
        self._encoder = encoder
        self._lock = Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retrieval")

    @classmethod
    def open(
        cls, directory: str | Path, encoder: Encoder | None = None, *, verify_hashes: bool = True
    ) -> LocalRetriever:
        """Load an index directory; without an ``encoder``, the one that the manifest names.

        ``verify_hashes=False`` skips the SHA-256 of corpus and shards (sizes and counts are always checked), which
        saves one reading of every file.

        Raises:
            ManifestError: something does not fit; the message says which value, and what was expected.
        """
        directory = Path(directory)
        manifest = Manifest.load(directory)
        spec = manifest.check_complete()
        store = PassageStore(directory)
        size = store.path.stat().st_size
        found = store.info() if verify_hashes else CorpusInfo(len(store), size, manifest.corpus.sha256)
        check_corpus(found, manifest.corpus, store.path)
        index = ShardedIndex.open(directory, manifest, verify_hash=verify_hashes)
        encoder = encoder or SentenceEncoder(spec.name, family=spec.family)
        check_encoder(encoder.spec, spec)
        stored = index.vector(0)
        again = encoder.encode_passages(store.get([0]))[0]
        cosine = float(stored @ again / (np.linalg.norm(stored) * np.linalg.norm(again)))
        if not cosine >= _SAME_MODEL:
            raise ManifestError(
                f"encoder {encoder.spec.name!r} embeds passage 0 with cosine {cosine:.3f} to the vector in the index, "
                f"which {spec.name!r} made: it is another model, or other weights under the same name"
            )
        return cls(store, index, encoder, index_id=manifest.index_id)

    @property
    def rows(self) -> int:
        return self._index.rows

    @property
    def encoder_name(self) -> str:
        return self._encoder.spec.name

    def find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The ``topk`` best passages of each query, in order; a blank query gets none. Blocks."""
        asked = list(dict.fromkeys(query for query in queries if query.strip()))
        with self._lock:
            hits = self._index.search(self._encoder.encode_queries(asked), topk)
        answers = {
            query: [
                Passage(row, contents, score)
                for (row, score), contents in zip(found, self._store.get(row for row, _ in found), strict=True)
            ]
            for query, found in zip(asked, hits, strict=True)
        }
        return [list(answers.get(query, ())) for query in queries]

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """``find`` in this object's own thread, so that the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self.find, list(queries), topk)

    def close(self) -> None:
        self._worker.shutdown(wait=True)
        self._store.close()

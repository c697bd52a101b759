"""Retrieval in this process: encoder, index and passages behind one object. What a server serves, and what tests use.

Invariants:
- Nothing is served that does not fit: corpus, index and encoder are checked against the manifest as they are opened,
  and the encoder embeds passage 0 again, which must give the vector that the manifest keeps of it.
- One search at a time: FAISS indexes on GPUs and tokenizers are not safe under several threads.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np

from rag_r1.retrieval.blocking import BlockingSearcher
from rag_r1.retrieval.encoder import Encoder, SentenceEncoder
from rag_r1.retrieval.index import ShardedIndex
from rag_r1.retrieval.manifest import Manifest, ManifestError, check_corpus, check_encoder
from rag_r1.retrieval.passages import CorpusInfo, PassageStore
from rag_r1.retrieval.types import Passage

_SAME_MODEL = 0.98  # cosine of one text under fp32 and fp16 is above 0.999, under another model near 0


class LocalRetriever(BlockingSearcher):
    """``find`` blocks, ``search`` does the same for asyncio. ``open`` loads an index directory and checks it.

    ``stage_s`` holds the seconds that the last ``find`` spent in each of "encode", "search" and "read".
    """

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
        super().__init__()
        self.index_id, self.rows, self.encoder_name = index_id, index.rows, encoder.spec.name
        self._store = store
        self._index = index
        self._encoder = encoder

    @classmethod
    def open(
        cls,
        directory: str | Path,
        encoder: Encoder | None = None,
        *,
        verify_hashes: bool = True,
        mmap: bool = False,
        gpu: bool = False,
    ) -> LocalRetriever:
        """Load an index directory; without an ``encoder``, the one that the manifest names.

        Args:
            verify_hashes: False skips the SHA-256 of corpus and shards (sizes and counts are always checked), which
                saves one reading of every file.
            mmap, gpu: where the shards are kept, see ``ShardedIndex.open``.

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
        index = ShardedIndex.open(directory, manifest, verify_hash=verify_hashes, mmap=mmap, gpu=gpu)
        encoder = encoder or SentenceEncoder(spec.name, family=spec.family)
        check_encoder(encoder.spec, spec)
        stored = np.array(manifest.first_vector, np.float32)
        again = encoder.encode_passages(store.get([0]))[0]
        cosine = float(stored @ again / (np.linalg.norm(stored) * np.linalg.norm(again)))
        if not cosine >= _SAME_MODEL:
            raise ManifestError(
                f"encoder {encoder.spec.name!r} embeds passage 0 with cosine {cosine:.3f} to the vector of the index, "
                f"which {spec.name!r} made: it is another model, or other weights under the same name"
            )
        return cls(store, index, encoder, index_id=manifest.index_id)

    def _find(self, queries: list[str], topk: int) -> list[list[Passage]]:
        times = [perf_counter()]
        vectors = self._encoder.encode_queries(queries)
        times.append(perf_counter())
        hits = self._index.search(vectors, topk)
        times.append(perf_counter())
        texts = [self._store.get(row for row, _ in found) for found in hits]
        times.append(perf_counter())
        self.stage_s = {
            name: stop - start
            for name, (start, stop) in zip(("encode", "search", "read"), pairwise(times), strict=True)
        }
        return [
            [Passage(row, text, score) for (row, score), text in zip(found, contents, strict=True)]
            for found, contents in zip(hits, texts, strict=True)
        ]

    def close(self) -> None:
        super().close()
        self._store.close()

"""The second stage of a build over many GPUs: Ray Data feeds one encoder a worker, this process keeps the books.

The vectors are those of ``rag_r1.retrieval.embeddings.build_embeddings``, block by block, and so are the files: a build that was
begun with one may be finished with the other. Workers read passages from the index directory, so all machines must see it;
only this process writes there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rag_r1.retrieval.embeddings import EmbeddingJob
from rag_r1.retrieval.encoder import SentenceEncoder
from rag_r1.retrieval.manifest import Manifest
from rag_r1.retrieval.passages import PassageStore


class _Embedder:
    """One worker: a model, and the corpus to read from."""

    def __init__(self, directory: str, model: dict[str, Any]) -> None:
        self._store = PassageStore(directory)
        self._encoder = SentenceEncoder(**model)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        start, stop = int(batch["start"][0]), int(batch["stop"][0])
        vectors = self._encoder.encode_passages(self._store.get(range(start, stop)))
        return {"start": [start], "stop": [stop], "vectors": [vectors.tobytes()]}


def build_embeddings_on_ray(
    directory: str | Path,
    model: dict[str, Any],
    *,
    workers: int,
    on_progress: Callable[[int], object] | None = None,
    **layout: Any,
) -> Manifest:
    """Embed the passages of ``directory`` in ``workers`` Ray workers, each with a GPU where the cluster has any.

    Args:
        model: the arguments of ``SentenceEncoder``.
        layout: ``rows_per_shard``, ``shards`` and ``dtype`` of ``EmbeddingJob``.

    Raises:
        ValueError: fewer GPUs (or CPU cores) in the cluster than workers, and what ``EmbeddingJob`` raises.
    """
    spec = SentenceEncoder(**{**model, "device": "cpu", "precision": "fp32"}).spec
    job = EmbeddingJob(directory, spec, **layout)
    advance = on_progress or (lambda _: None)
    advance(job.rows - sum(stop - start for start, stop in job.blocks))
    if not job.blocks:
        return job.finish()
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False)
    try:
        have = ray.cluster_resources()
        resource = "GPU" if have.get("GPU", 0) else "CPU"
        if workers > have.get(resource, 0):
            raise ValueError(f"--workers {workers}: the Ray cluster has {have.get(resource, 0):g} {resource}s")
        ray.data.DataContext.get_current().enable_progress_bars = False
        blocks = ray.data.from_items([{"start": start, "stop": stop} for start, stop in job.blocks])
        embedded = blocks.map_batches(
            _Embedder,
            fn_constructor_args=(str(Path(directory).resolve()), model),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_gpus=1 if resource == "GPU" else 0,
            num_cpus=0 if resource == "GPU" else 1,
        )
        for row in embedded.iter_rows():
            vectors = np.frombuffer(row["vectors"], np.float32).reshape(-1, spec.dim)
            job.write((row["start"], row["stop"]), vectors)
            advance(len(vectors))
    finally:
        if started:
            ray.shutdown()
    return job.finish()

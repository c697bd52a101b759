"""Retrieval on Ray: the embeddings of a corpus over all GPUs (``embeddings``), the server as replicas (``serving``).

Apart from ``rag_r1.retrieval``, which runs without Ray and never imports it.
"""

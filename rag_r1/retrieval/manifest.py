"""``manifest.json``: what an index directory holds and which pieces belong together.

An index directory is ``passages.tsv``, ``passages.offsets.npy``, ``embeddings-00000.npy`` ..., ``index-00000.faiss``
... and the manifest; what serves needs all but the embeddings. Invariants:
- Row r of the corpus is row r of the embeddings and of the index. Shards cover ``[0, rows)`` in order, without gaps.
- The manifest is replaced as a whole, after the files that it describes are complete: a build that died leaves the old
  manifest or the new one, never one that promises what is not there.
- A stage that runs again drops what later stages made from its old output.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rag_r1.retrieval.encoder import EncoderSpec
from rag_r1.retrieval.files import sha256_of, short_id, write_json
from rag_r1.retrieval.passages import CorpusInfo

MANIFEST_FILE = "manifest.json"
FORMAT = 2
METRIC = "inner_product"


class ManifestError(ValueError):
    """Pieces of an index that do not belong together; the message names the value that differs."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: rows ``[start, stop)`` of the corpus, its size in bytes and its SHA-256."""

    file: str
    start: int
    stop: int
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path, start: int, stop: int) -> Shard:
        return cls(path.name, start, stop, path.stat().st_size, sha256_of(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """``encoder`` and ``embeddings`` are there after the second stage of a build, the rest after the third.

    ``kind`` is a name of ``kinds.KINDS`` or a FAISS factory string, ``factory`` the string that it stood for, ``search`` the
    parameters that FAISS searches with (``nprobe``, ``efSearch``), ``first_vector`` the embedding of passage 0, which
    tells at start whether an encoder is the one of the index, ``report`` what ``index_report`` measured.
    """

    corpus: CorpusInfo
    encoder: EncoderSpec | None = None
    embeddings: tuple[Shard, ...] = ()
    kind: str = "flat"
    factory: str = "Flat"
    metric: str = METRIC
    search: dict[str, int] = field(default_factory=dict)
    first_vector: tuple[float, ...] = ()
    shards: tuple[Shard, ...] = ()
    report: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: str | Path) -> Manifest:
        """Raises ``FileNotFoundError``, or ``ManifestError`` for a file of another form or format."""
        path = Path(directory) / MANIFEST_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: build the index with the scripts in scripts/build_corpus")
        try:
            raw: dict[str, Any] = json.loads(path.read_bytes())
            if raw.pop("format") != FORMAT:
                raise ManifestError(f"{path} is not of format {FORMAT}: build the index again with this version")
            raw.pop("index_id", None)  # for people to read; always computed
            return cls(
                corpus=CorpusInfo(**raw.pop("corpus")),
                encoder=EncoderSpec(**encoder) if (encoder := raw.pop("encoder")) else None,
                embeddings=tuple(Shard(**shard) for shard in raw.pop("embeddings")),
                shards=tuple(Shard(**shard) for shard in raw.pop("shards")),
                first_vector=tuple(raw.pop("first_vector")),
                **raw,
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ManifestError(f"{path} cannot be read ({error!r}): build the index again") from error

    def save(self, directory: str | Path) -> None:
        write_json(Path(directory) / MANIFEST_FILE, {"format": FORMAT, "index_id": self.index_id, **asdict(self)})

    @property
    def index_id(self) -> str:
        """Names what a search can return: equal ids, equal answers (up to rounding)."""
        parts = {"corpus": self.corpus.sha256, "factory": self.factory, "metric": self.metric}
        parts |= {"search": self.search}  # type: ignore[dict-item]
        parts |= {"encoder": asdict(self.encoder) if self.encoder else None}  # type: ignore[dict-item]
        parts |= {"shards": [shard.sha256 for shard in self.shards or self.embeddings]}  # type: ignore[dict-item]
        return short_id(parts)

    def check_complete(self) -> EncoderSpec:
        """Raises ``ManifestError`` unless the index is built, in one metric, over every row of the corpus."""
        if self.encoder is None:
            raise ManifestError("the corpus has no embeddings yet: run scripts/build_corpus/build_embeddings.py")
        if not self.shards:
            raise ManifestError("the embeddings have no index yet: run scripts/build_corpus/build_index.py")
        if self.metric != METRIC:
            raise ManifestError(f"metric is {self.metric!r}, but passages are ranked by {METRIC!r}")
        check_cover(self.shards, self.corpus.rows)
        return self.encoder


def check_cover(shards: tuple[Shard, ...], rows: int) -> None:
    """Raises ``ManifestError`` unless the shards cover ``[0, rows)`` in order, without gap or overlap."""
    position = 0
    for shard in shards:
        if shard.start != position or shard.stop <= shard.start:
            raise ManifestError(
                f"shard {shard.file} holds rows {shard.start} to {shard.stop}, but row {position} comes next"
            )
        position = shard.stop
    if position != rows:
        raise ManifestError(f"the index holds {position} rows and the corpus {rows}: they do not belong together")


class Listed(Protocol):
    """A file as a card lists it: a ``Shard``, or one of BM25's."""

    @property
    def file(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def sha256(self) -> str: ...


def check_file(directory: Path, listed: Listed, *, verify_hash: bool, listed_in: str = MANIFEST_FILE) -> Path:
    """The path of a file whose size (and hash) is what its card says; ``ManifestError`` otherwise."""
    path = directory / listed.file
    if not path.is_file():
        raise ManifestError(f"{path} is missing, though {listed_in} lists it")
    if (size := path.stat().st_size) != listed.bytes:
        raise ManifestError(f"{path} has {size} bytes, but {listed_in} says {listed.bytes}: the file is torn")
    if verify_hash and sha256_of(path) != listed.sha256:
        raise ManifestError(f"{path} differs from the SHA-256 in {listed_in}: the file is damaged or was replaced")
    return path


def check_corpus(found: CorpusInfo, expected: CorpusInfo, path: Path) -> None:
    """Raises ``ManifestError`` unless the corpus is the one that the index was built from."""
    for name in ("rows", "bytes", "sha256"):
        have, want = getattr(found, name), getattr(expected, name)
        if have != want:
            raise ManifestError(
                f"{path} has {name} {have}, but the index was built from a corpus with {name} {want}. "
                "Give the corpus of this index, or build the index again"
            )


def check_encoder(found: EncoderSpec, expected: EncoderSpec) -> None:
    """Raises ``ManifestError`` unless the encoder embeds as the one that made the index.

    Names may differ, since one model has many (a hub name, a folder); ``LocalRetriever.open`` also compares vectors.
    """
    for name in ("dim", "normalised", "pooling", "query_instruction", "passage_prefix"):
        have, want = getattr(found, name), getattr(expected, name)
        if have != want:
            raise ManifestError(
                f"encoder {found.name!r} has {name} = {have!r}, but the index was built by {expected.name!r} "
                f"with {name} = {want!r}. Serve with --encoder {expected.name}, or build the index again"
            )

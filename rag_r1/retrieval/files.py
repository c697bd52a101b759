"""What every stage of a build does with files: unfinished names, hashes, and room on the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any


def partial_path(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + ".partial")


def write_json(path: Path, content: object) -> None:
    """Replace ``path`` as a whole, on the disk before it has its name."""
    partial = partial_path(path)
    with partial.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_json(path: Path) -> Any:
    """What ``path`` holds; None where it is missing or cut short."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hex, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def short_id(parts: object) -> str:
    """Sixteen hex digits that equal parts share: the name of what an index can answer."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def check_room(directory: Path, needed_bytes: int, what: str) -> None:
    """Raises ``OSError`` (ENOSPC) where the disk of ``directory`` has less room than a stage is about to need."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{what} needs about {gigabytes(needed_bytes)} in {directory}, where {gigabytes(free)} are free: "
            "make room, or choose another folder",
        )


def gigabytes(size_bytes: float) -> str:
    """ "4.1 GB": decimal, as disks are sold."""
    return f"{size_bytes / 1e9:.3g} GB"

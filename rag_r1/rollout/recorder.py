"""Trajectory log: one JSON line a trajectory, appended.

Each line is one `write` on a file opened with O_APPEND, so coroutines, threads and processes on one machine may share
the file and lines never mix. (A network file system gives no such promise: use one file a node there.) Numbers that
JSON cannot hold (NaN, infinity) are written as null.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from rag_r1.rollout.trajectory import Trajectory


class TrajectoryRecorder:
    """Appends trajectories to `path`; parent folders are made. Use as a context manager, or call `close`."""

    def __init__(self, path: str | os.PathLike[str], *, with_contents: bool = False) -> None:
        self.path = Path(path)
        self.with_contents = with_contents
        """Write passage texts too; without them a line holds ids and scores."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, trajectory: Trajectory, **extra: Any) -> None:
        """Append one line: the trajectory's record and `extra` (rewards, step, ...). OSError where the disk is full."""
        record = trajectory.to_record(with_contents=self.with_contents)
        clash = record.keys() & extra.keys()
        if clash:
            raise ValueError(f"extra fields {sorted(clash)} are already in the record of trajectory {trajectory.id!r}")
        line = orjson.dumps(record | extra, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written; is the disk full?")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> TrajectoryRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

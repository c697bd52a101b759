"""The file of an evaluation run: one JSON line a scored sample, and beside it the settings that gave it.

`results.jsonl` has `results.settings.json` at its side. Invariants:

* A line is one whole record, appended in one write; a key (question id, sample) is there at most once while no run is
  at work on a file, and again after every start and every end.
* A run killed at any moment loses at most the record that it was writing: the half-written last line is dropped at the
  next start. Failed records are dropped there too, so that the run plays those questions again.
* A file holds results of one setting. Going on under another one (model, data, prompt, sampling, budget, retriever)
  is refused, with the names of what differs; so is a second process on the same file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

Record = dict[str, Any]
"""A trajectory's `to_record` with passages, and: sample (int), kind, data_source, golden_answers, metrics
(`trajectory_metrics`), failed (bool: engine or retriever), wall_s (from start to end of this question, among
`concurrency` questions at once)."""


def key(record: Record) -> tuple[str, int]:
    """What identifies a record: question id and number of the sample."""
    return record["id"], record["sample"]


def settings_path(path: str | os.PathLike[str]) -> Path:
    return Path(path).with_suffix(".settings.json")


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Whole records of `path` in file order; a half-written last line is left out.

    ValueError, with file and line, for any other line that is not a record.
    """
    *lines, last = Path(path).read_bytes().split(b"\n")
    records = [_parse(path, number, line) for number, line in enumerate(lines, start=1)]
    if last:  # no newline: the writer was killed here, before or just after the last brace
        with suppress(ValueError):
            records.append(_parse(path, len(lines) + 1, last))
    return records


def _parse(path: str | os.PathLike[str], number: int, line: bytes) -> Record:
    try:
        record = orjson.loads(line)
        key(record), record["metrics"]["em"], record["failed"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}, line {number}: not a record of an evaluation ({error!r})") from error
    return dict(record)


def write_records(path: str | os.PathLike[str], records: Sequence[Record]) -> None:
    """Replace `path` by `records`, all or nothing."""
    temporary = Path(path).with_suffix(".tmp")
    with temporary.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings beside the results file `path`. ValueError where there are none."""
    beside = settings_path(path)
    try:
        return dict(json.loads(beside.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} has no readable settings in {beside}: {error}") from error


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What differs between two settings, as "key: value -> value", nested keys joined by dots."""
    left, right = _flat(one), _flat(other)
    names = dict.fromkeys([*left, *right])
    return [f"{n}: {left.get(n)!r} -> {right.get(n)!r}" for n in names if left.get(n) != right.get(n)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


@contextmanager
def resume(path: Path, settings: Mapping[str, Any]) -> Iterator[list[Record]]:
    """Hold `path` for one run, and give the records that an earlier run with the same settings scored.

    ValueError: other settings, a file without settings, or another process at work on it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = json.loads(json.dumps(settings))
    with settings_path(path).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{path}: another evaluation is writing to it; give this one another place") from error
        started = path.exists() and path.stat().st_size > 0
        if started:
            changed = differences(read_settings(path), wanted)
            if changed:
                raise ValueError(
                    f"{path} holds results of other settings ({'; '.join(changed)}): give another place, or delete it"
                )
        else:
            file.truncate(0)
            file.write(json.dumps(wanted, indent=2, ensure_ascii=False) + "\n")
            file.flush()
        records = [record for record in read_records(path) if not record["failed"]] if started else []
        write_records(path, records)
        yield records

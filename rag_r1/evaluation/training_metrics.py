"""What training logged, as curves: reads `metrics.jsonl` and picks the declared panels that it can fill.

A run that was resumed has `metrics-2.jsonl` and so on beside it; given the run's folder, all of them are read.

A line is `{"step": int, "data": {name: number, ...}}`, as verl's file logger writes it. Which metrics exist depends on
the algorithm and the version, so a panel names alternatives and is left out where none was logged.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

Series = dict[int, float]
"""Value by step."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot. `sources` are tried in order, and the first with a match is drawn; then all of `extra` that exist."""

    title: str
    unit: str
    sources: tuple[tuple[tuple[str, str], ...], ...]
    """Alternatives, each a group of (pattern, label); "*" in a label is what the pattern's "*" matched."""
    extra: tuple[tuple[str, str], ...] = ()
    share: bool = False
    """Values lie in 0..1, and the axis shows all of it."""


SCORE = Panel(
    "Exact match during training",
    "exact match (share of questions)",
    (
        (("search/em", "rollouts, all kinds"), ("search/em/*", "rollouts, *")),
        (("reward/em/mean", "rollouts, all kinds"), ("reward/em/*/mean", "rollouts, *")),
        (("critic/score/mean", "rollouts, mean reward"),),
        (("critic/rewards/mean", "rollouts, mean reward less KL penalty"),),
    ),
    (("val-core/*/reward/mean@1", "validation, *"), ("val-core/*/acc/mean@1", "validation, *")),
    share=True,
)
PANELS = (
    Panel(
        "Searching",
        "a question",
        ((("search/rounds", "rounds"), ("search/queries", "queries")), (("num_turns/mean", "turns"),)),
    ),
    Panel(
        "Well-formed trajectories",
        "share",
        ((("search/format_valid", "every turn well-formed"), ("search/answered", "answered")),),
        share=True,
    ),
    Panel("Policy entropy", "nats a token", ((("actor/entropy", "entropy"),), (("actor/entropy_loss", "entropy"),))),
    Panel("KL to the reference", "nats a token", ((("actor/reward_kl_penalty", "KL"),), (("actor/kl_loss", "KL"),))),
    Panel("Response length", "tokens", ((("response_length/mean", "policy and observations, mean"),),)),
    Panel("Time of a step", "seconds", ((("timing_s/step", "step"), ("timing_s/gen", "rollout")),)),
)


def read_metrics(path: str | os.PathLike[str]) -> dict[str, Series]:
    """Series of every number that was logged, by metric name. A step logged twice (a resumed run) keeps the later value.

    Args:
        path: a file of training metrics, or the folder of a run (`trainer.default_local_dir`).

    Raises:
        FileNotFoundError: no such file, or a folder without one.
        ValueError: a line is not a step, with file and line; a half-written last line is left out.
    """
    series: dict[str, Series] = {}
    for file in _metrics_files(Path(path)):
        _read_into(series, file)
    return {name: dict(sorted(values.items())) for name, values in series.items()}


def _metrics_files(path: Path) -> list[Path]:
    """In the order of writing: metrics.jsonl, metrics-2.jsonl, ..., metrics-10.jsonl."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("metrics*.jsonl"), key=lambda file: (len(file.name), file.name))
    if not files:
        raise FileNotFoundError(f"{path} holds no metrics.jsonl; name the folder of a run (trainer.default_local_dir)")
    return files


def _read_into(series: dict[str, Series], path: Path) -> None:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                step, data = int(entry["step"]), dict(entry["data"])
            except (ValueError, KeyError, TypeError) as error:
                if not line.endswith("\n"):
                    break
                raise ValueError(f"{path}, line {number}: not a step of training metrics ({error!r})") from error
            for name, value in data.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    series.setdefault(name, {})[step] = float(value)


def curves(panel: Panel, metrics: dict[str, Series]) -> list[tuple[str, Series]]:
    """(label, series) of what `panel` can draw from `metrics`; empty where it has nothing."""
    found: list[tuple[str, Series]] = []
    for group in panel.sources:
        found = _matches(group, metrics)
        if found:
            break
    return found + _matches(panel.extra, metrics)


def _matches(patterns: Sequence[tuple[str, str]], metrics: dict[str, Series]) -> list[tuple[str, Series]]:
    found: dict[str, Series] = {}
    for pattern, label in patterns:
        before, _, after = pattern.partition("*")
        for name in sorted(metrics):
            if fnmatchcase(name, pattern) and name[len(before) : len(name) - len(after)].count("/") == 0:
                middle = name[len(before) : len(name) - len(after)] if "*" in pattern else ""
                found.setdefault(label.replace("*", middle.replace("_", " ")), metrics[name])
    return list(found.items())

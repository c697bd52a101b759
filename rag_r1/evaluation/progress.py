"""Progress of an evaluation on the terminal: questions done, running EM, failures, time left."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Scoreboard:
    """A progress bar of `total` samples that starts where an earlier run ended (`done`, its records)."""

    def __init__(self, total: int, done: Sequence[dict[str, Any]], enabled: bool) -> None:
        self._em_sum = sum(record["metrics"]["em"] for record in done)
        self._scored = len(done)
        self._failed = 0
        self._bar = Progress(
            TextColumn("evaluating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not enabled,
        )
        self._task = self._bar.add_task(self.text, total=total, completed=len(done))

    @property
    def text(self) -> str:
        em = f"EM {self._em_sum / self._scored:.3f}" if self._scored else "EM -"
        return em + (f", {self._failed} failed" if self._failed else "")

    def add(self, em: float, *, failed: bool) -> None:
        """Count one finished sample; a failed one has no part in EM."""
        if failed:
            self._failed += 1
        else:
            self._em_sum += em
            self._scored += 1
        self._bar.update(self._task, advance=1, description=self.text)

    def __enter__(self) -> Scoreboard:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

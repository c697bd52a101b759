"""Bootstrap intervals over questions, deterministic.

What is resampled is the question, not the sample: the n samples of a question are not independent, so their mean is one
observation. Percentile intervals, 2,000 resamples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

RESAMPLES = 2000


def question_means(records: Sequence[dict[str, object]], values: Sequence[float]) -> dict[str, float]:
    """Mean value of each question over its samples, by id, in order of first appearance."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for record, value in zip(records, values, strict=True):
        groups[str(record["id"])].append(value)
    return {id: sum(group) / len(group) for id, group in groups.items()}


def bootstrap_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean of `values`; NaN where there are none."""
    if not values:
        return float("nan"), float("nan")
    array = np.asarray(values, dtype=np.float64)  # (Q,)
    rng = np.random.default_rng(0)
    means = [array[rng.integers(0, array.size, array.size)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float, float, int]:
    """Mean of after - before over the questions that both hold, its 95 % interval, and their number."""
    shared = [after[id] - before[id] for id in before if id in after]
    if not shared:
        return float("nan"), float("nan"), float("nan"), 0
    return sum(shared) / len(shared), *bootstrap_interval(shared), len(shared)

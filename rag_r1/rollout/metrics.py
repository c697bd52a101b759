"""From a finished trajectory to its reward and the metrics beside it, for training and evaluation alike.

The reward is exact match (paper, section 3.3: no format reward, no neural reward) of what the policy wrote inside
`<answer>`: never of the prompt, which shows an example answer, and never of a retrieved passage. F1, cover-EM, format
validity and counts ride along as metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_r1.rewards import format_valid, score
from rag_r1.rollout.trajectory import Trajectory


def trajectory_metrics(trajectory: Trajectory, golden_answers: Sequence[str]) -> dict[str, float]:
    """Per-trajectory figures, all floats: `em` is the reward, the rest is reported only.

    A trajectory that failed outside the policy (retriever or engine) has `failed` 1 and counts as wrong here; its loss mask
    is empty, so nothing is learned from it.
    """
    metrics = dict(score(trajectory.answer, golden_answers))
    metrics["format_valid"] = float(format_valid([turn.text for turn in trajectory.turns]))
    metrics["answered"] = float(trajectory.answer is not None)
    metrics["rounds"] = float(trajectory.num_searches)
    metrics["queries"] = float(trajectory.num_queries)
    metrics["invalid_turns"] = float(trajectory.num_invalid)
    metrics["cut_turns"] = float(sum(turn.reason == "cut_by_length" for turn in trajectory.turns))
    metrics["failed"] = float(not trajectory.in_loss)
    return metrics

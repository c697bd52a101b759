"""verl's synchronous PPO trainer, with two things that a search agent needs.

- Figures of the rollouts (`search/...`): EM, F1, cover-EM, rounds, queries and validity, over all and by question kind.
- A limit on failures: trajectories that the retriever or the engine lost carry an empty mask; when more than
  `rag_r1.retriever.max_failed_share` of a batch is lost, the run saves a checkpoint and stops, before it learns from the rest.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync


class TooManyFailures(RuntimeError):
    """More trajectories of a batch failed outside the policy than the configuration allows."""


class SearchAgentTrainer(PPOTrainerSync):
    def _balance_batch(self, batch: KVBatchMeta, *args: Any, **kwargs: Any) -> KVBatchMeta:
        # the first place at which verl shows the whole batch, and before anything is computed on it
        self._outcomes = _extra_fields(batch)
        failures = Counter(f["end_reason"] for f in self._outcomes if f["reward_extra_info"]["failed"])
        self._stop_beyond_limit(failures, len(self._outcomes))
        return super()._balance_batch(batch, *args, **kwargs)

    def _stop_beyond_limit(self, failures: Counter[str], num_trajectories: int) -> None:
        limit = self.config.rag_r1.retriever.max_failed_share
        if failures.total() <= limit * num_trajectories:
            return
        reasons = ", ".join(f"{count} {reason}" for reason, count in failures.most_common())
        self.global_steps -= 1  # this step did not happen: a resumed run does it again
        self._save_checkpoint()
        raise TooManyFailures(
            f"step {self.global_steps + 1}: {failures.total()} of {num_trajectories} trajectories failed outside the policy "
            f"({reasons}), more than rag_r1.retriever.max_failed_share={limit}. Saved global_step_{self.global_steps} in "
            f"{self.config.trainer.default_local_dir}. Check the retriever at {self.config.rag_r1.retriever.url} and "
            f"{self.config.rag_r1.trajectories_path}, then start again with the same command (trainer.resume_mode=auto)."
        )

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        metrics.update(search_metrics((f["kind"], f["reward_extra_info"]) for f in self._outcomes))
        metrics.update(_token_metrics(batch))


def _token_metrics(batch: KVBatchMeta) -> dict[str, float]:
    """Tokens in the loss, and how far the engine's log-probs are from the trainer's on them.

    A gap beyond the float noise of the two implementations means that the engine ran other weights, other ids or another
    temperature than the trainer believes: the first thing to look at when a run goes wrong.
    """
    data = tq.kv_batch_get(
        keys=_real_keys(batch),
        partition_id=batch.partition_id,
        select_fields=["response_mask", "old_log_probs", "rollout_log_probs"],
    )
    mask = data["response_mask"].values().bool()
    gap = (data["old_log_probs"].values() - data["rollout_log_probs"].values()).abs()[mask]
    return {"search/loss_tokens": float(mask.sum()), "search/log_prob_gap_max": float(gap.max()) if len(gap) else 0.0}


def _real_keys(batch: KVBatchMeta) -> list[str]:
    """Keys of the batch's trajectories, without the rows that only pad it."""
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]


def _extra_fields(batch: KVBatchMeta) -> list[dict[str, Any]]:
    """What the agent loop reported beside the ids, a trajectory each."""
    data = tq.kv_batch_get(keys=_real_keys(batch), partition_id=batch.partition_id, select_fields=["extra_fields"])
    return list(data.pop("extra_fields").tolist())


def search_metrics(infos: Iterable[tuple[str, dict[str, float]]]) -> dict[str, float]:
    """Mean of every figure over the trajectories, and of EM and rounds by kind.

    >>> search_metrics([("bridge", {"em": 1.0, "rounds": 2.0}), ("bridge", {"em": 0.0, "rounds": 1.0})])
    {'search/em': 0.5, 'search/rounds': 1.5, 'search/em/bridge': 0.5, 'search/rounds/bridge': 1.5}
    """
    columns: defaultdict[str, list[float]] = defaultdict(list)
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for kind, info in infos:
        for name, value in info.items():
            columns[f"search/{name}"].append(value)
            if kind and name in ("em", "rounds"):
                by_kind[f"search/{name}/{kind}"].append(value)
    return {name: sum(values) / len(values) for name, values in {**columns, **by_kind}.items()}


class _SearchAgentTaskRunner(TaskRunnerV1.__ray_metadata__.modified_class):  # type: ignore[misc]
    """verl's task runner; its trainer class is looked up in a registry whose names also steer the data flow, so ours takes
    the place of "sync" in this one process instead of a name of its own."""

    def run(self, config: Any) -> None:
        folder = Path(config.trainer.default_local_dir)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("VERL_FILE_LOGGER_PATH", str(metrics_path(folder)))
        os.environ.setdefault("TENSORBOARD_DIR", str(folder / "tensorboard"))
        if config.trainer.v1.trainer_mode == "sync":
            TRAINER_REGISTRY["sync"] = SearchAgentTrainer
        super().run(config)


def metrics_path(folder: Path) -> Path:
    """`metrics.jsonl`, or `metrics-2.jsonl` ... for a resumed run: verl's file logger would empty an existing file."""
    existing = len(list(folder.glob("metrics*.jsonl")))
    return folder / (f"metrics-{existing + 1}.jsonl" if existing else "metrics.jsonl")


SearchAgentTaskRunner = ray.remote(_SearchAgentTaskRunner)

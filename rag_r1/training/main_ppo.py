"""`python -m rag_r1.training.main_ppo [--config-name NAME] [key=value ...]`: PPO for a search agent.

Hydra composes `configs/NAME.yaml` on top of verl's own schema (`pkg://verl.trainer.config`), so every key of verl works as an
override, and `--cfg job` prints what a run would use. The checks of `checks.py` come first; then verl starts Ray and trains.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import hydra

CONFIG_DIR = Path(__file__).resolve().parents[2] / "configs"


@hydra.main(config_path=str(CONFIG_DIR), config_name="ppo_multi_query", version_base=None)
def main(config: Any) -> None:
    from rag_r1.training.checks import find_problems

    problems = find_problems(config)
    if problems:
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(2)
    train(config)


def train(config: Any) -> None:
    """Start Ray and run PPO to the end; Ray and everything it started end with this call, whatever happens."""
    import ray
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from rag_r1.training.trainer import SearchAgentTaskRunner

    _set_thread_counts()
    auto_set_device(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    try:
        run_ppo(config, task_runner_class=SearchAgentTaskRunner)
    finally:
        ray.shutdown()


def _set_thread_counts() -> None:
    """One thread a process on a CPU, unless OMP_NUM_THREADS says more.

    The processes of a run share the cores, and OpenMP's threads spin while they wait for each other: with two threads a
    process, steps were seen to take ten times as long as soon as anything else ran on the machine.
    """
    from verl.plugin.platform import get_platform

    if get_platform().device_name == "cpu":
        threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("TQ_NUM_THREADS", threads)  # TransferQueue asks for eight on any machine


if __name__ == "__main__":
    main()

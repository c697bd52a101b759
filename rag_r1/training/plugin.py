"""Entry point of group `verl.plugins`: verl loads this module at the end of `import verl`, in every process of a run.

| hook of verl                        | what is registered                                             |
| ----------------------------------- | -------------------------------------------------------------- |
| `PlatformRegistry`                  | platform `cpu` (`cpu_platform.py`, `cpu_patches.py`)           |
| `RolloutReplicaRegistry` and the rollout class registry | rollout `transformers` (`transformers_rollout.py`) |
| agent loop registry                 | agent loop `rag_r1` (`agent_loop.py`)                          |
| `load_valuehead_model` (replaced)   | a value head that starts at zero (`value_model.py`)            |

verl logs an exception in a plugin at debug level and goes on, so a failure here is kept in `LOAD_ERROR`, and
`checks.check_plugin` raises it before anything is started.
"""

from __future__ import annotations

LOAD_ERROR: Exception | None = None
AGENT_LOOP_NAME = "rag_r1"


def _register() -> None:
    from verl.plugin.platform import get_platform

    from rag_r1.training import cpu_patches, cpu_platform, value_model  # noqa: F401 (registers the platform)

    if get_platform().device_name == "cpu":
        cpu_patches.apply()
    value_model.apply()

    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

    def load_replica() -> type[RolloutReplica]:
        from rag_r1.training.transformers_rollout import TransformersReplica

        return TransformersReplica

    RolloutReplicaRegistry.register("transformers", load_replica)
    _ROLLOUT_REGISTRY[("transformers", "async")] = "rag_r1.training.transformers_rollout.TransformersServerAdapter"
    _agent_loop_registry[AGENT_LOOP_NAME] = {"_target_": "rag_r1.training.agent_loop.SearchAgentLoop"}


try:
    _register()
except Exception as error:
    LOAD_ERROR = error

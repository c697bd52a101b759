"""What verl 0.9.1 cannot do on a CPU through its hooks: three small changes, each with its reason.

Applied once a process, on the CPU platform only. Each one names the place in verl that it changes; `apply` refuses any other
version of verl, because the places may have moved.
"""

from __future__ import annotations

import functools

TESTED_VERL = "0.9.1"


def apply() -> None:
    """Change verl in this process so that FSDP2 actors, critics and references run on a CPU.

    Raises:
        RuntimeError: verl is not the version that these changes were written for.
    """
    import verl

    if verl.__version__ != TESTED_VERL:
        raise RuntimeError(
            f"verl {verl.__version__} is installed, but the CPU changes are for {TESTED_VERL}: pip install verl=={TESTED_VERL}"
        )
    _use_gloo_alone()
    _register_fsdp_engines()
    _do_not_pin_memory()


def _use_gloo_alone() -> None:
    """`verl.utils.distributed` asks for "cpu:gloo,cpu:gloo", which torch refuses as a duplicate device."""
    from verl.utils import distributed

    initialise = distributed.initialize_global_process_group_ray
    distributed.initialize_global_process_group_ray = functools.partial(initialise, backend="gloo")


def _register_fsdp_engines() -> None:
    """The FSDP engines are device-agnostic, but registered for cuda and npu only."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

    for model_type, engine in (("language_model", FSDPEngineWithLMHead), ("value_model", FSDPEngineWithValueHead)):
        EngineRegistry.register(model_type=model_type, backend=["fsdp2"], device=["cpu"])(engine)


def _do_not_pin_memory() -> None:
    """The reference model always gets `CPUOffloadPolicy(pin_memory=True)`; pinning needs an accelerator."""
    from torch.distributed.fsdp import CPUOffloadPolicy
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.CPUOffloadPolicy = lambda pin_memory=True: CPUOffloadPolicy(pin_memory=False)
